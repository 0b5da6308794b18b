"""Which correct bodies may be trained on.

Invariant: the split depends on the body with its names normalised away, and on nothing else: under any naming, seed,
fault or tier, a body is always on the same side.
"""

import re
from enum import StrEnum

import blake3

HELD_OUT_PERCENT = 15


class Split(StrEnum):
    """Which katas a source gives."""

    TRAIN = "train"
    HELD_OUT = "held_out"


_WORD = re.compile(r"'[^']*'|\.?[A-Za-z_]\w*")
_NOT_NAMES = frozenset(
    ("return", "if", "for", "in", "range", "max", "min", "abs", "int", "sum", "len", "sorted", "list")
)


def normalise(body: str) -> str:
    """The lines below the `def`, variables renamed `v0`, `v1`, ... in order of first use. Strings and methods stay."""
    names: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        word = match.group()
        if word[0] in "'." or word in _NOT_NAMES:
            return word
        return names.setdefault(word, f"v{len(names)}")

    return _WORD.sub(rename, body.rstrip("\n"))


def split_of(body: str) -> Split:
    """The split of a correct body."""
    bucket = int.from_bytes(blake3.blake3(normalise(body).encode()).digest(length=8), "little") % 100
    return Split.HELD_OUT if bucket < HELD_OUT_PERCENT else Split.TRAIN
