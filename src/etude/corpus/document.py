"""What the stages hand on: documents, and the reasons for dropping one.

Invariant: a file that is read ends either as one document of one split or under exactly one `DropReason`.
"""

from dataclasses import dataclass
from enum import StrEnum

from blake3 import blake3


class DropReason(StrEnum):
    """Why a file is not in the corpus. In the order in which they are looked for: a file gets the first that holds."""

    UNREADABLE = "unreadable"  # no permission, gone, a dangling link, not a regular file
    TOO_LARGE = "too_large"
    TOO_SMALL = "too_small"
    BINARY = "binary"  # holds a NUL byte
    NOT_UTF8 = "not_utf8"
    GENERATED = "generated"  # its header says so
    LONG_LINE = "long_line"
    SECRET = "secret"
    NOT_PYTHON = "not_python"  # the running interpreter cannot parse it
    EXACT_DUPLICATE = "exact_duplicate"  # of an earlier document, white space aside
    NEAR_DUPLICATE = "near_duplicate"


class Split(StrEnum):
    """Where a package's documents go. No package is in both."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Document:
    """One source file.

    name: path below its root, with slashes; the same on every machine that has the same packages installed.
    text: its text, with newlines as `\\n` and without a byte-order mark.
    """

    name: str
    text: str

    @property
    def package(self) -> str:
        """Top-level module or folder: `json` of json/decoder.py, `ast` of ast.py."""
        first, slash, _ = self.name.partition("/")
        return first if slash else first.removesuffix(".py")


def split_of(package: str, held_out_share: float) -> Split:
    """The split of a package, by a hash of its name alone: no other seed or machine trains on what one has held out."""
    digest = blake3(f"split/{package}".encode("utf-8", "surrogateescape")).digest(6)
    return Split.HELD_OUT if int.from_bytes(digest, "big") < held_out_share * 2**48 else Split.TRAIN
