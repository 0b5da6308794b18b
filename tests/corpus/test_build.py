"""The whole way: files to shards, twice the same, resumed, replaced, broken, killed."""

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from etude.corpus import NO_DOCUMENT, CorpusReport, DropReason, Split, Tokenizer, build_corpus, load_shards
from etude.corpus.document import split_of
from etude.records import UserError
from tests.corpus.trees import config_of, package_of, small_tree, source, write


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def documents(folder: Path, split: Split) -> list[list[int]]:
    """Ids of each document, its end marker cut off; read back from the rows."""
    packed = load_shards(folder, split)
    ids = packed.ids_NS[packed.doc_NS != NO_DOCUMENT].tolist()
    found: list[list[int]] = [[]]
    for token in ids:
        if token == 1:
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop() == []
    return found


def restored(ids: list[int], tokenizer: Tokenizer) -> str:
    """The file's text, whether or not the document was rearranged."""
    starts = [place for place, token in enumerate(ids) if token < 17]
    if not starts:
        return tokenizer.decode(ids)
    parts = {ids[a]: tokenizer.decode(ids[a + 1 : b]) for a, b in pairwise([*starts, len(ids)])}
    assert len(parts) == 3
    return "".join(parts[tokenizer.special(f"<|fim_{name}|>")] for name in ("prefix", "middle", "suffix"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, CorpusReport]:
    """(tree, corpus folder, report)"""
    base = tmp_path_factory.mktemp("corpus")
    tree = small_tree(base / "tree")
    return tree, base / "out", build_corpus(config_of(tree), base / "out")


def test_shards_hold_every_document_whole_and_no_package_in_both(built: tuple[Path, Path, CorpusReport]) -> None:
    tree, out, report = built
    tokenizer = Tokenizer.load(out / "tokenizer")
    assert (tokenizer.digest, tokenizer.vocab_size) == (report.tokenizer_digest, report.vocab_size)
    for split in Split:
        expected = sorted(path.read_text() for path in tree.rglob("*.py") if split_of(path.parent.name, 0.2) is split)
        read_back = documents(out, split)
        assert sorted(restored(ids, tokenizer) for ids in read_back) == expected
        fim = sum(any(token in ids for token in (14, 15, 16)) for ids in read_back)
        counts = report.splits[split.value]
        assert (counts.documents, counts.fim_documents) == (len(expected), fim)
        assert counts.bytes == sum(map(len, expected))
        assert counts.tokens == int((load_shards(out, split).doc_NS != NO_DOCUMENT).sum())
    assert report.splits["train"].fim_documents > 0 == report.splits["held_out"].fim_documents
    assert report.held_out_packages and all(split_of(p, 0.2) is Split.HELD_OUT for p in report.held_out_packages)


def test_rows_number_documents_from_zero_and_only_the_last_is_padded(built: tuple[Path, Path, CorpusReport]) -> None:
    _, out, report = built
    packed = load_shards(out, "train")
    assert packed.ids_NS.dtype == np.int32 and packed.doc_NS.dtype == np.int16
    assert packed.ids_NS.shape == (report.splits["train"].rows, 64)
    assert (packed.doc_NS[:-1] >= 0).all() and (packed.doc_NS[:, 0] == 0).all()
    inside = packed.doc_NS[:-1]
    assert (np.diff(inside, axis=1) == (packed.ids_NS[:-1, :-1] == 1)).all()  # a new one exactly after <|eod|>
    assert ((packed.ids_NS == 0) == (packed.doc_NS == NO_DOCUMENT)).all()


def test_every_file_is_accounted_for_once(tmp_path: Path) -> None:
    train, held_out = package_of(Split.TRAIN, 0.2), package_of(Split.HELD_OUT, 0.2)
    secret = "password = 'q7Zp" + "Xc0Lr9TtKvB2mWy4'\n"
    tree = write(
        tmp_path / "tree",
        {
            f"{train}/good.py": source(1, 20),
            f"{held_out}/good.py": source(2, 20),
            f"{train}/exact.py": source(1, 20) + "\n\n",
            f"{held_out}/near.py": source(1, 20) + "last = 1\n",
            f"{train}/small.py": "x = 1\n",
            f"{train}/large.py": source(3, 200),
            f"{train}/binary.py": source(4).encode() + b"\0",
            f"{train}/latin.py": source(5).encode() + b"# \xe9\n",
            f"{train}/generated.py": "# @generated\n" + source(6),
            f"{train}/long.py": f"x = '{'y' * 500}'\n" + source(7),
            f"{train}/secret.py": secret + source(8),
            f"{train}/broken.py": source(9) + "def\n",
            f"{train}/tests/test_excluded.py": source(10),
        },
    )
    os.symlink("nowhere", tree / train / "dangling.py")
    report = build_corpus(config_of(tree, max_file_bytes=10_000), tmp_path / "out")
    duplicates = (report.dropped["exact_duplicate"], report.dropped["near_duplicate"])
    assert report.dropped == {reason.value: 1 for reason in DropReason}, duplicates
    assert (report.files_found, report.files_read, report.documents) == (13, 13, 2)
    assert "1 near duplicate" in report.as_table()["dropped"]


def test_the_same_inputs_give_the_same_bytes_wherever_the_trees_are(
    built: tuple[Path, Path, CorpusReport], tmp_path: Path
) -> None:
    """In another process, whose sets and dicts of strings iterate in another order."""
    _, out, report = built
    small_tree(tmp_path / "moved")
    program = (
        "import sys; from pathlib import Path; from etude.corpus import build_corpus; "
        "from tests.corpus.trees import config_of; import os\n"
        "build_corpus(config_of(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "moved"), str(tmp_path / "out")]
    subprocess.run(arguments, check=True, env={**os.environ, "PYTHONHASHSEED": "123"}, cwd=Path(__file__).parents[2])
    ours, theirs = contents(out), contents(tmp_path / "out")
    del ours["manifest.json"], theirs["manifest.json"]  # holds the hash of the config, which names the tree
    assert ours == theirs
    other = build_corpus(config_of(built[0], seed=1), tmp_path / "other")
    assert other.files["train.parquet"] != report.files["train.parquet"]
    assert other.held_out_packages == report.held_out_packages


def test_a_second_call_does_no_work_until_something_changes(tmp_path: Path) -> None:
    tree, out = small_tree(tmp_path / "tree"), tmp_path / "out"
    config = config_of(tree)
    first = build_corpus(config, out, ["fix the bug"])
    before = contents(out)
    (tree / "package0" / "module0.py").unlink()  # not looked at
    notes: list[tuple[float, str]] = []
    assert build_corpus(config, out, ["fix the bug"], lambda share, note: notes.append((share, note))) == first
    assert notes == [(1.0, "already there")] and contents(out) == before
    again = build_corpus(config, out, ["another text"])
    assert again.config_hash != first.config_hash and again.files_read == first.files_read - 1
    (out / "train.parquet").write_bytes(before["train.parquet"][:-1])
    assert build_corpus(config, out, ["another text"]) == again
    assert len(load_shards(out, "train")) == again.splits["train"].rows


def test_progress_rises_to_one(tmp_path: Path) -> None:
    shares: list[float] = []
    build_corpus(
        config_of(small_tree(tmp_path / "tree")), tmp_path / "out", (), lambda share, note: shares.append(share)
    )
    assert shares == sorted(shares) and len(shares) > 60 and shares[0] > 0 and shares[-1] == 1.0


def test_frequent_words_of_the_extra_texts_become_tokens_but_enter_no_shard(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    words = ("subtract", "reverse", "uppercase")
    prompts = [f"f: please {word} the argument" for word in words]
    with_extra, without = (
        (build_corpus(config_of(tree), tmp_path / name, texts), Tokenizer.load(tmp_path / name / "tokenizer"))
        for name, texts in (("with", prompts), ("without", []))
    )
    assert [len(with_extra[1].encode_text(f" {word}")) for word in words] == [1, 1, 1]
    assert min(len(without[1].encode_text(f" {word}")) for word in words) > 1
    assert with_extra[0].splits["train"].bytes == without[0].splits["train"].bytes


def test_an_empty_split_says_what_to_do(tmp_path: Path) -> None:
    train = package_of(Split.TRAIN, 0.2)
    tree = write(tmp_path / "tree", {f"{train}/a.py": source(1)})
    with pytest.raises(UserError, match=r"1 documents of 1 packages is for held_out.*corpus\.held_out_share"):
        build_corpus(config_of(tree), tmp_path / "out")
    report = build_corpus(config_of(tree, held_out_share=0.0), tmp_path / "out")
    assert len(load_shards(tmp_path / "out", "held_out")) == report.splits["held_out"].rows == 0
    with pytest.raises(UserError, match="0 documents"):
        build_corpus(config_of(tree, max_bytes=1), tmp_path / "out")


def test_a_folder_with_other_things_is_never_replaced(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds 'thesis\.tex'"):
        build_corpus(config_of(tree).model_copy(update={"exclude": ()}), tmp_path)
    with pytest.raises(UserError, match="a file stands"):
        build_corpus(config_of(tree), tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("harm", ["folder", "manifest", "no_manifest", "format", "truncated", "no_shard", "flipped"])
def test_a_broken_folder_never_loads(
    built: tuple[Path, Path, CorpusReport], tmp_path: Path, harm: str, split: str
) -> None:
    folder = tmp_path / "corpus"
    if harm != "folder":
        write(folder, contents(built[1]))
        load_shards(folder, split)
    manifest, shard = folder / "manifest.json", folder / f"{split}.parquet"
    if harm == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:100])
    elif harm == "format":
        report = msgspec.structs.replace(built[2], format=999)
        manifest.write_bytes(msgspec.json.encode(report))
    elif harm == "truncated":
        shard.write_bytes(shard.read_bytes()[:-7])
    elif harm == "flipped":
        data = bytearray(shard.read_bytes())
        data[100] ^= 1
        shard.write_bytes(data)
    elif harm in ("no_manifest", "no_shard"):
        (manifest if harm == "no_manifest" else shard).unlink()
    with pytest.raises(UserError, match=f"{folder}.*etude corpus build"):
        load_shards(folder, split)


def test_an_unknown_split_is_named(built: tuple[Path, Path, CorpusReport]) -> None:
    with pytest.raises(UserError, match=r"'test'.*train and held_out"):
        load_shards(built[1], "test")


_KILLED = """
import os, signal, sys
from pathlib import Path
from etude.corpus import build_corpus
from tests.corpus.trees import config_of
def progress(share, note):
    if share >= float(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
build_corpus(config_of(Path(sys.argv[1])), Path(sys.argv[2]), (), progress)
"""


@pytest.mark.parametrize("share", ["0.01", "0.95"])
def test_a_killed_build_leaves_nothing_that_loads_and_the_next_one_is_whole(
    built: tuple[Path, Path, CorpusReport], tmp_path: Path, share: str
) -> None:
    tree, whole, report = built
    out = tmp_path / "out"
    arguments = [sys.executable, "-c", _KILLED, str(tree), str(out), share]
    ended = subprocess.run(arguments, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL
    left = [out, *tmp_path.iterdir()]
    assert len(left) > 1  # the half-made folder
    for folder in left:
        with pytest.raises(UserError, match="etude corpus build"):
            load_shards(folder, "train")
    assert build_corpus(config_of(tree), out) == report
    assert contents(out) == contents(whole)
