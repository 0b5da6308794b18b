"""What a build did, in numbers: `manifest.json`.

Invariants: every file that was read is counted once, `files_read == documents + sum(dropped.values())`; no number
depends on the clock or the machine, so that the same inputs give the same bytes.
"""

import msgspec

FORMAT = 1  # of the folder; part of the config hash, so that an older folder is built again


class SplitCounts(msgspec.Struct, frozen=True):
    """One split. bytes: UTF-8 of its documents. tokens: with end markers and sentinels, without padding."""

    packages: int
    documents: int
    fim_documents: int
    bytes: int
    tokens: int
    rows: int


class CorpusReport(msgspec.Struct, frozen=True):
    """The manifest of a corpus folder.

    config_hash: BLAKE3 of what the folder depends on beside the files: config, extra texts, format.
    files_found: by the globs, excluded ones left out. files_read: within the budget. dropped: by DropReason.
    bytes_per_token: of text in both splits, over the tokens that stand for text (no end markers, no sentinels).
    files: BLAKE3 in hex of each file of the folder but this one.
    """

    format: int
    config_hash: str
    tokenizer_digest: str
    vocab_size: int
    sequence_length: int
    files_found: int
    files_read: int
    bytes_read: int
    dropped: dict[str, int]
    documents: int
    tokens: int
    bytes_per_token: float
    fim_documents: int
    splits: dict[str, SplitCounts]
    held_out_packages: list[str]
    files: dict[str, str]

    def as_table(self) -> dict[str, str]:
        """What a person wants to read, label to value."""
        train, held_out = self.splits["train"], self.splits["held_out"]
        drops = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in self.dropped.items() if count)
        return {
            "files": f"{self.files_read:,} read of {self.files_found:,} found ({self.bytes_read / 1e6:.2f} MB)",
            "dropped": drops or "none",
            "documents": f"{self.documents:,} ({self.fim_documents:,} for fill-in-the-middle)",
            "vocabulary": f"{self.vocab_size:,} tokens, {self.bytes_per_token:.2f} bytes each",
            "train": f"{train.tokens:,} tokens in {train.rows:,} rows, {train.packages:,} packages",
            "held out": f"{held_out.tokens:,} tokens in {held_out.rows:,} rows, {held_out.packages:,} packages",
        }
