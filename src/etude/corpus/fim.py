"""Fill-in-the-middle: a document is cut at two characters and its middle put last.

Invariant: prefix + middle + suffix is the document. Each part follows its own sentinel, in either order:
    PSM  <|fim_prefix|> prefix <|fim_suffix|> suffix <|fim_middle|> middle
    SPM  <|fim_suffix|> suffix <|fim_prefix|> prefix <|fim_middle|> middle
(Bavarian et al. 2022, "Efficient training of language models to fill in the middle", arXiv 2207.14255.) Both orders are
equally likely; all tokens are trained on.
"""

import random
from dataclasses import dataclass
from enum import StrEnum


class FimOrder(StrEnum):
    """What comes first."""

    PSM = "prefix_suffix_middle"
    SPM = "suffix_prefix_middle"


@dataclass(frozen=True)
class FimCut:
    """A document in three parts, and the order in which they are written."""

    prefix: str
    middle: str
    suffix: str
    order: FimOrder

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """(sentinel, text) pairs as they are written."""
        prefix, suffix = ("<|fim_prefix|>", self.prefix), ("<|fim_suffix|>", self.suffix)
        ends = (prefix, suffix) if self.order is FimOrder.PSM else (suffix, prefix)
        return (*ends, ("<|fim_middle|>", self.middle))


def draw_cut(text: str, rate: float, key: str) -> FimCut | None:
    """A cut with probability `rate`, else None. Depends on the arguments alone, so documents can come in any order."""
    rng = random.Random(key)
    if rng.random() >= rate:
        return None
    start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    order = FimOrder.PSM if rng.random() < 0.5 else FimOrder.SPM
    return FimCut(text[:start], text[start:end], text[end:], order)
