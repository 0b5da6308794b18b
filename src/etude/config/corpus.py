"""The corpus: which files are read, what is dropped, how the rest is tokenised and packed."""

from pydantic import Field

from etude.config.base import Config


class CorpusConfig(Config):
    """Python source trees to packed token shards. The defaults read about 3 MB of whatever Python is installed."""

    globs: tuple[str, ...] = Field(default=("{stdlib}/**/*.py", "{site}/**/*.py"), min_length=1)
    """Patterns of source files. `{stdlib}` and `{site}` are the interpreter's standard library and site-packages. What
    stands before the first wildcard is the root; the first part of a path below it is the file's package."""
    exclude: tuple[str, ...] = (
        "site-packages", "dist-packages", "node_modules", "_vendor", "vendor", "_vendored", "third_party", "thirdparty",
        "test", "tests", "testing", "idle_test", "test_*.py", "*_test.py", "conftest.py", "lib2to3", "turtledemo",
    )  # fmt: skip
    """Patterns of what is left out, below the root: without a slash for any one part of the path, with one for all of
    it. Hidden folders are never read."""
    max_files: int | None = Field(default=None, ge=1)
    """Files to read at most; None is all of them."""
    max_bytes: int = Field(default=3_000_000, ge=1)
    """Bytes of source text to read at most. Which files is decided by a hash of their paths below the root."""
    min_file_bytes: int = Field(default=100, ge=1)
    """Bytes below which a file is dropped."""
    max_file_bytes: int = Field(default=200_000, ge=1)
    """Bytes above which a file is dropped, unread; it does not count towards `max_bytes`."""
    max_line_length: int = Field(default=400, ge=1)
    """Characters of a line above which its file is dropped: data and minified code."""
    vocab_size: int = Field(default=2048, ge=512, le=1_000_000)
    """Tokens of the vocabulary at most, with 17 special tokens and 256 bytes among them."""
    sequence_length: int = Field(default=256, ge=8, le=1_048_576)
    """Tokens of one packed row."""
    fim_rate: float = Field(default=0.3, ge=0.0, le=1.0)
    """Share of the training documents that are rearranged for fill-in-the-middle; held-out ones stay as they are."""
    held_out_share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Expected share of the packages that are held out; decided by a hash of their names, whatever the seed."""
    near_duplicate_threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Jaccard similarity of 5-token shingles from which a document is a near duplicate of an earlier one."""
    seed: int = 0
    """Seed of the choice of files, of their order and of the fill-in-the-middle cuts."""
