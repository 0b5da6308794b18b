"""`etude corpus build`: the stages in their order.

Invariants: the same inputs give the same bytes; the folder appears whole or not at all; a package is in one split only;
tokenizer and shards of the training split have seen nothing that is held out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from blake3 import blake3

from etude.config.corpus import CorpusConfig
from etude.corpus.dedup import Deduplicator
from etude.corpus.document import Document, DropReason, Split, split_of
from etude.corpus.filters import reason_to_drop
from etude.corpus.fim import draw_cut
from etude.corpus.pack import PackedTokens, pack
from etude.corpus.read import SourceFile, find_files, read_files
from etude.corpus.report import FORMAT, CorpusReport, SplitCounts
from etude.corpus.shards import (
    MANIFEST,
    check_files,
    hash_files,
    read_manifest,
    shard_name,
    write_manifest,
    write_shard,
)
from etude.corpus.tokenizer import Tokenizer
from etude.records import UserError, directory_atomic

Progress = Callable[[float, str], None]

TOKENIZER = "tokenizer"
# Of the characters that merges are learnt from. At this share a word in 1 of 100 task prompts becomes a single token.
_EXTRA_SHARE = 1 / 3
_BATCH = 64  # documents tokenised at once: enough to use all cores; Python's lists of ids take 20 bytes a byte of text
# What may stand in a folder that a build replaces. config.toml is the command line's.
_OURS = {MANIFEST, TOKENIZER, "config.toml", *(shard_name(split) for split in Split)}


@dataclass(frozen=True)
class _Collected:
    """What reading, filtering and deduplication left over."""

    documents: list[Document]
    dropped: Counter[DropReason]
    files_found: int
    files_read: int
    bytes_read: int


@dataclass(frozen=True)
class _Tokenised:
    """One split as ids."""

    documents: list[Document]
    ids: list[np.ndarray]
    fim_documents: int


def build_corpus(
    config: CorpusConfig, out: str | Path, extra_texts: Sequence[str] = (), on_progress: Progress | None = None
) -> CorpusReport:
    """Write the corpus folder `out`, or return the report of the one that is there when config and extra texts
    are the same and all its files are intact; the source trees are then not looked at.

    extra_texts: texts such as task prompts that the tokenizer also learns from; they do not enter the shards.
    on_progress(share, note): called as the work goes on, with share from 0 to 1.

    Raises UserError for a root that does not exist, an empty split, a folder in the way that is no corpus, a full disk.
    """
    out, update = Path(out), on_progress or (lambda share, note: None)
    wanted = _config_hash(config, extra_texts)
    stored = _stored_report(out)
    if stored is not None and stored.config_hash == wanted:
        update(1.0, "already there")
        return stored
    _refuse_foreign(out)
    files = find_files(config.globs, config.exclude, config.seed)
    with directory_atomic(
        out.resolve()
    ) as folder:  # from here on, so that an unwritable disk is known before the work is done
        report = _build(config, wanted, files, extra_texts, folder, update)
    update(1.0, f"{report.tokens:,} tokens")
    return report


def _build(
    config: CorpusConfig,
    config_hash: str,
    files: list[SourceFile],
    extra_texts: Sequence[str],
    folder: Path,
    update: Progress,
) -> CorpusReport:
    collected = _collect(config, files, lambda share, note: update(0.6 * share, note))
    by_split = _split(config, collected.documents)
    update(0.6, "training the tokenizer")
    train_texts = [document.text for document in by_split[Split.TRAIN]]
    tokenizer = Tokenizer.train([*train_texts, *_repeated(extra_texts, train_texts)], config.vocab_size)
    tokenizer.save(folder / TOKENIZER)
    splits: dict[str, SplitCounts] = {}
    for split, documents in by_split.items():
        update(0.75 if split is Split.TRAIN else 0.95, f"tokenising {len(documents):,} documents ({split.value})")
        tokenised = _tokenise(config, documents, tokenizer, config.fim_rate if split is Split.TRAIN else 0.0)
        packed = pack(tokenised.ids, config.sequence_length, tokenizer.special("<|pad|>"))
        write_shard(folder, split, packed, tokenizer.vocab_size)
        splits[split.value] = _counts(tokenised, packed)
    tokens = sum(counts.tokens for counts in splits.values())
    fim_documents = sum(counts.fim_documents for counts in splits.values())
    markers = len(collected.documents) + 3 * fim_documents
    report = CorpusReport(
        format=FORMAT,
        config_hash=config_hash,
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        sequence_length=config.sequence_length,
        files_found=collected.files_found,
        files_read=collected.files_read,
        bytes_read=collected.bytes_read,
        dropped={reason.value: collected.dropped[reason] for reason in DropReason},
        documents=len(collected.documents),
        tokens=tokens,
        bytes_per_token=sum(counts.bytes for counts in splits.values()) / (tokens - markers),
        fim_documents=fim_documents,
        splits=splits,
        held_out_packages=sorted({document.package for document in by_split[Split.HELD_OUT]}),
        files=hash_files(folder),
    )
    write_manifest(folder, report)
    return report


def _collect(config: CorpusConfig, files: list[SourceFile], update: Progress) -> _Collected:
    """Read, filter, deduplicate, one file at a time."""
    documents: list[Document] = []
    dropped: Counter[DropReason] = Counter()
    deduplicator = Deduplicator(config.near_duplicate_threshold)
    files_read = bytes_read = 0
    for document, size in read_files(files, config):
        files_read, bytes_read = files_read + 1, bytes_read + size
        if isinstance(document, DropReason):
            dropped[document] += 1
            continue
        reason = reason_to_drop(document.text, config.max_line_length) or deduplicator.check(document)
        if reason is None:
            documents.append(document)
        else:
            dropped[reason] += 1
        share = max(files_read / min(len(files), config.max_files or len(files)), bytes_read / config.max_bytes)
        update(share, f"{len(documents):,} documents of {files_read:,} files")
    return _Collected(documents, dropped, len(files), files_read, bytes_read)


def _split(config: CorpusConfig, documents: list[Document]) -> dict[Split, list[Document]]:
    """Documents by split, in their order. Raises UserError when a split that is wanted would be empty."""
    by_split: dict[Split, list[Document]] = {split: [] for split in Split}
    for document in documents:
        by_split[split_of(document.package, config.held_out_share)].append(document)
    wanted = list(Split) if config.held_out_share > 0 else [Split.TRAIN]
    for split in wanted:
        if not by_split[split]:
            packages = len({document.package for document in documents})
            raise UserError(
                f"corpus: none of {len(documents)} documents of {packages} packages is for {split.value}; "
                "read more packages (corpus.globs, corpus.max_bytes) or change corpus.held_out_share"
            )
    return by_split


def _repeated(extra_texts: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The extra texts as often as makes them a third of what merges are learnt from, once at least."""
    extra, wanted = sum(map(len, extra_texts)), sum(map(len, texts)) * _EXTRA_SHARE / (1 - _EXTRA_SHARE)
    return [*extra_texts] * max(1, round(wanted / extra)) if extra else []


def _tokenise(config: CorpusConfig, documents: list[Document], tokenizer: Tokenizer, fim_rate: float) -> _Tokenised:
    """Each document as ids, rearranged or not, ended by <|eod|>."""
    ids: list[np.ndarray] = []
    fim_documents = 0
    for start in range(0, len(documents), _BATCH):
        batch = documents[start : start + _BATCH]
        cuts = [draw_cut(document.text, fim_rate, f"{config.seed}/{document.name}") for document in batch]
        parts = [cut.parts if cut else (("", document.text),) for document, cut in zip(batch, cuts, strict=True)]
        encoded = iter(tokenizer.encode_texts([text for pairs in parts for _, text in pairs]))
        for pairs in parts:
            tokens: list[int] = []
            for sentinel, _ in pairs:
                tokens += [tokenizer.special(sentinel)] if sentinel else []
                tokens += next(encoded)
            ids.append(np.array([*tokens, tokenizer.special("<|eod|>")], np.int32))
        fim_documents += sum(cut is not None for cut in cuts)
    return _Tokenised(documents, ids, fim_documents)


def _counts(tokenised: _Tokenised, packed: PackedTokens) -> SplitCounts:
    return SplitCounts(
        packages=len({document.package for document in tokenised.documents}),
        documents=len(tokenised.documents),
        fim_documents=tokenised.fim_documents,
        bytes=sum(len(document.text.encode()) for document in tokenised.documents),
        tokens=sum(map(len, tokenised.ids)),
        rows=len(packed),
    )


def _config_hash(config: CorpusConfig, extra_texts: Sequence[str]) -> str:
    what = [FORMAT, config.model_dump(mode="json"), list(extra_texts)]
    return blake3(msgspec.json.encode(what, order="deterministic")).hexdigest()


def _stored_report(out: Path) -> CorpusReport | None:
    """The report of an intact folder; None when there is none and a build must make one."""
    try:
        report = read_manifest(out)
        check_files(out, report)
    except UserError:
        return None
    return report


def _refuse_foreign(out: Path) -> None:
    """A build replaces the whole folder, so it must not be somebody's home."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: a file stands where the corpus folder should be; choose another run folder")
    foreign = sorted({path.name for path in out.iterdir()} - _OURS) if out.is_dir() else []
    if foreign:
        raise UserError(f"{out}: holds {foreign[0]!r}, which is no part of a corpus; choose another run folder")
