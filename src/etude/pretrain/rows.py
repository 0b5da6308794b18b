"""Training rows: packed ids, the document of each token, and which tokens count.

Invariant: a row never shows a token to another document, and every token that counts has a predecessor in its document.

Shape legend: N rows, S tokens a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from etude.corpus import PackedTokens
from etude.models import PADDING
from etude.records import Segment


@dataclass(frozen=True)
class Rows:
    """ids_NS int32, doc_NS int16 (-1 padding), counts_NS bool."""

    ids_NS: np.ndarray
    doc_NS: np.ndarray
    counts_NS: np.ndarray

    def __len__(self) -> int:
        return len(self.ids_NS)

    def take(self, rows: np.ndarray) -> "Rows":
        """The given rows."""
        return Rows(self.ids_NS[rows], self.doc_NS[rows], self.counts_NS[rows])


def corpus_rows(packed: PackedTokens) -> Rows:
    """Every token of a document counts except its first, which nothing precedes."""
    return Rows(packed.ids_NS, packed.doc_NS, _has_predecessor(packed.doc_NS) & (packed.doc_NS != PADDING))


def demonstration_rows(segments: Sequence[Segment], length: int) -> Rows:
    """Pack segments, in their order, into rows of `length` tokens; a segment is never split.

    Raises ValueError for a segment longer than a row.
    """
    ids, doc, counts = [], [], []
    for group in _fill(segments, length):
        row_ids, row_doc = np.zeros(length, np.int32), np.full(length, PADDING, np.int16)
        row_counts = np.zeros(length, bool)
        at = 0
        for number, segment in enumerate(group):
            end = at + len(segment)
            row_ids[at:end], row_doc[at:end], row_counts[at:end] = segment.ids_T, number, segment.sampled_T
            at = end
        ids.append(row_ids)
        doc.append(row_doc)
        counts.append(row_counts)
    doc_NS = np.stack(doc)
    return Rows(np.stack(ids), doc_NS, np.stack(counts) & _has_predecessor(doc_NS))


def shuffled(count: int, seed: int, rows_per_step: int, start_step: int) -> Iterator[np.ndarray]:
    """Row numbers of step after step, for ever; a new order each epoch. Depends on the arguments alone, so a resumed
    run sees what the killed one would have seen."""
    if count < rows_per_step:
        raise ValueError(f"{count} rows are fewer than the {rows_per_step} of one step")
    per_epoch = count // rows_per_step
    step = start_step
    while True:
        order = np.random.default_rng([seed, step // per_epoch]).permutation(count)
        for within in range(step % per_epoch, per_epoch):
            yield order[within * rows_per_step : (within + 1) * rows_per_step]
            step += 1


def _fill(segments: Sequence[Segment], length: int) -> Iterator[list[Segment]]:
    group: list[Segment] = []
    used = 0
    for segment in segments:
        if len(segment) > length:
            raise ValueError(f"a demonstration has {len(segment)} tokens, a row holds {length}")
        if used + len(segment) > length:
            yield group
            group, used = [], 0
        group.append(segment)
        used += len(segment)
    if group:
        yield group


def _has_predecessor(doc_NS: np.ndarray) -> np.ndarray:
    result = np.zeros(doc_NS.shape, bool)
    result[:, 1:] = doc_NS[:, 1:] == doc_NS[:, :-1]
    return result
