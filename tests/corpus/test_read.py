"""Which files are read, in which order, and what comes of the ones that cannot be."""

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from etude.config.corpus import CorpusConfig
from etude.corpus.document import Document, DropReason, Split, split_of
from etude.corpus.read import find_files, read_files
from etude.records import UserError
from tests.corpus.trees import config_of, package_of, small_tree, write


def names(tree: Path, exclude: tuple[str, ...] = (), pattern: str = "**/*.py", seed: int = 0) -> list[str]:
    return [file.name for file in find_files([f"{tree}/{pattern}"], exclude, seed)]


def read_one(tree: Path, config: CorpusConfig) -> Document | DropReason:
    [(document, _)] = read_files(find_files(config.globs, (), 0), config)
    return document


def test_order_depends_on_seed_and_name_only_never_on_where_the_tree_is(tmp_path: Path) -> None:
    here = small_tree(tmp_path / "a")
    there = Path(shutil.copytree(here, tmp_path / "deep" / "er" / "b"))
    assert names(here) == names(there)
    assert names(here) != sorted(names(here))
    assert names(here) != names(here, seed=1) and sorted(names(here)) == sorted(names(here, seed=1))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.py", {"top.py", "one/a.py", "one/two/b.py", "tests/c.py"}),
        ("*.py", {"top.py"}),
        ("one/*.py", {"a.py"}),  # the root is one/
        ("*/a.py", {"one/a.py"}),
        ("**/two/**", {"one/two/b.py", "one/two/data.txt"}),
        ("one/two/?.py", {"b.py"}),
        ("one/a.py", {"a.py"}),
    ],
)
def test_a_glob_finds_what_it_says(tmp_path: Path, pattern: str, expected: set[str]) -> None:
    files = ("top.py", "one/a.py", "one/two/b.py", "one/two/data.txt", "tests/c.py", ".hidden/d.py")
    tree = write(tmp_path, dict.fromkeys(files, "x"))
    assert set(names(tree, pattern=pattern)) == expected


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (("tests",), {"keep.py", "one/test_a.py", "one/testsuite.py"}),
        (("test_*.py",), {"keep.py", "one/testsuite.py", "tests/c.py", "one/tests/d.py"}),
        (("one/tests",), {"keep.py", "one/test_a.py", "one/testsuite.py", "tests/c.py"}),
        (("one", "tests"), {"keep.py"}),
    ],
)
def test_exclusions_name_a_part_or_a_path_and_all_below_it(
    tmp_path: Path, exclude: tuple[str, ...], left: set[str]
) -> None:
    files = ("keep.py", "one/test_a.py", "one/testsuite.py", "tests/c.py", "one/tests/d.py")
    assert set(names(write(tmp_path, dict.fromkeys(files, "x")), exclude)) == left


def test_a_file_found_twice_is_read_once_and_loops_of_links_end(tmp_path: Path) -> None:
    tree = write(tmp_path, {"a/x.py": "x"})
    os.symlink("x.py", tree / "a" / "same.py")
    os.symlink(tree, tree / "a" / "loop")
    os.symlink("self.py", tree / "a" / "self.py")
    found = find_files([f"{tree}/**/*.py", f"{tree}/a/*.py"], (), 0)
    assert sorted(Path(file.path).name for file in found) == ["self.py", "x.py"]


def test_the_defaults_mean_the_interpreter_without_its_site_packages_twice() -> None:
    found = find_files(CorpusConfig().globs, CorpusConfig().exclude, 0)
    stdlib = os.path.realpath(sysconfig.get_paths()["stdlib"])
    assert any(file.name == "ast.py" and file.path.startswith(stdlib) for file in found)
    assert any(file.name.startswith("pydantic/") for file in found)
    assert not any(file.name.startswith(("site-packages/", "test/")) for file in found)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("{tree}/missing/**/*.py", "{tree}/missing: no such folder"),
        ("{tree}/*.c", "no file matches"),
        ("{nowhere}/*.py", "unknown placeholder {nowhere}"),
    ],
)
def test_a_glob_that_cannot_mean_anything_is_named(tmp_path: Path, pattern: str, said: str) -> None:
    write(tmp_path, {"a.py": "x"})
    with pytest.raises(UserError) as caught:
        find_files([pattern.replace("{tree}", str(tmp_path))], (), 0)
    assert said.replace("{tree}", str(tmp_path)) in str(caught.value)


def test_the_budget_takes_a_prefix_of_the_order(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    files = find_files([f"{tree}/**/*.py"], (), 0)
    sizes = [os.path.getsize(file.path) for file in files]
    for budget in (1, sizes[0], sum(sizes[:5]), sum(sizes[:5]) - 1, sum(sizes)):
        read = list(read_files(files, config_of(tree, max_bytes=budget)))
        count = max(n for n in range(len(sizes) + 1) if sum(sizes[:n]) <= budget)
        assert [size for _, size in read] == sizes[:count]
        assert [document.name for document, _ in read] == [file.name for file in files[:count]]  # type: ignore[union-attr]
    assert len(list(read_files(files, config_of(tree, max_files=3)))) == 3


GOOD = "value = 1  # enough bytes to be worth keeping, which is one hundred of them by default, as the config says\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x = 1\n", DropReason.TOO_SMALL),
        (b" \n" * 100, DropReason.TOO_SMALL),
        (GOOD.encode() * 1000, DropReason.TOO_LARGE),
        (GOOD.encode() + b"\0", DropReason.BINARY),
        (GOOD.encode() + b"# caf\xe9\n", DropReason.NOT_UTF8),
    ],
)
def test_bytes_that_are_no_text_of_the_right_size_are_dropped(tmp_path: Path, content: bytes, reason: str) -> None:
    tree = write(tmp_path, {"a.py": content})
    assert read_one(tree, config_of(tree, max_file_bytes=50_000)) is reason


def test_what_is_no_regular_file_is_unreadable_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert read_one(tmp_path, config_of(tmp_path)) is DropReason.UNREADABLE
    os.unlink(tmp_path / "pipe.py")
    os.symlink("nowhere", tmp_path / "dangling.py")
    assert read_one(tmp_path, config_of(tmp_path)) is DropReason.UNREADABLE


def test_text_has_plain_newlines_and_no_byte_order_mark(tmp_path: Path) -> None:
    tree = write(tmp_path, {"a.py": b"\xef\xbb\xbfa = 1\r\nb = 2\rc = 3\n" + GOOD.encode()})
    assert read_one(tree, config_of(tree)) == Document("a.py", "a = 1\nb = 2\nc = 3\n" + GOOD)


def test_a_package_is_the_first_part_of_a_name_and_has_one_split() -> None:
    assert Document("json/decoder.py", "").package == "json" == Document("json.py", "").package
    share = sum(split_of(f"p{index}", 0.1) is Split.HELD_OUT for index in range(5000)) / 5000
    assert 0.08 < share < 0.12
    assert package_of(Split.HELD_OUT, 0.1) in {package_of(Split.HELD_OUT, 0.2, n) for n in range(20)}
