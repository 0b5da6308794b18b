"""Training rows: packed ids, the document of each token, and what each token counts in the loss.

Invariant: a row never shows a token to another document, and every token that counts has a predecessor in its document.

Shape legend: N rows, S tokens a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from etude.corpus import PackedTokens
from etude.models import PADDING
from etude.records import Segment, UserError

OPEN_ROWS = 16


@dataclass(frozen=True)
class Rows:
    """ids_NS int32, doc_NS int16 (-1 padding), weights_NS float32 (0: the token is no target)."""

    ids_NS: np.ndarray
    doc_NS: np.ndarray
    weights_NS: np.ndarray

    def __len__(self) -> int:
        return len(self.ids_NS)

    def take(self, rows: np.ndarray) -> "Rows":
        """The given rows."""
        return Rows(self.ids_NS[rows], self.doc_NS[rows], self.weights_NS[rows])


def corpus_rows(packed: PackedTokens) -> Rows:
    """Every token of a document counts except its first, which nothing precedes."""
    return Rows(packed.ids_NS, packed.doc_NS, _has_predecessor(packed.doc_NS).astype(np.float32))


def demonstration_rows(segments: Sequence[Segment], length: int, prompt_weight: float) -> Rows:
    """Pack segments into rows of `length` tokens; a segment is never split. Sampled tokens weigh 1, others
    `prompt_weight`. Raises UserError for a segment longer than a row.
    """
    groups = list(_fill(segments, length))
    ids_NS = np.zeros((len(groups), length), np.int32)
    doc_NS = np.full((len(groups), length), PADDING, np.int16)
    weights_NS = np.zeros((len(groups), length), np.float32)
    for row, group in enumerate(groups):
        at = 0
        for number, segment in enumerate(group):
            end = at + len(segment)
            ids_NS[row, at:end], doc_NS[row, at:end] = segment.ids_T, number
            weights_NS[row, at:end] = np.where(segment.sampled_T, 1.0, prompt_weight)
            at = end
    return Rows(ids_NS, doc_NS, weights_NS * _has_predecessor(doc_NS))


def shuffled(count: int, seed: int, rows_per_step: int, start_step: int) -> Iterator[np.ndarray]:
    """Row numbers of step after step, for ever; a new order each epoch. Depends on the arguments alone, so a resumed
    run sees what the killed one would have seen. Raises UserError when there are too few rows for one step."""
    if count < rows_per_step:
        raise UserError(
            f"{count} rows are fewer than the {rows_per_step} of one step; lower rows_per_step or give more data"
        )
    per_epoch = count // rows_per_step
    step = start_step
    while True:
        order = np.random.default_rng([seed, step // per_epoch]).permutation(count)
        for within in range(step % per_epoch, per_epoch):
            yield order[within * rows_per_step : (within + 1) * rows_per_step]
            step += 1


def _fill(segments: Sequence[Segment], length: int) -> Iterator[list[Segment]]:
    """Each segment goes into the fullest of the open rows that still holds it; 16 rows are open at once. Demonstrations
    of 60 to 200 tokens fill rows of 256 to more than 90 %, one open row would fill them to 80 %."""
    open_rows: list[tuple[int, list[Segment]]] = []
    for segment in segments:
        size = len(segment)
        if size > length:
            raise UserError(
                f"a demonstration has {size} tokens, a row holds {length}; "
                "build the corpus with a corpus.sequence_length of at least agent.context"
            )
        fitting = [index for index, (used, _) in enumerate(open_rows) if used + size <= length]
        if fitting:
            used, group = open_rows.pop(max(fitting, key=lambda index: open_rows[index][0]))
        else:
            used, group = 0, []
            if len(open_rows) == OPEN_ROWS:
                fullest = max(range(OPEN_ROWS), key=lambda index: open_rows[index][0])
                yield open_rows.pop(fullest)[1]
        open_rows.append((used + size, [*group, segment]))
    yield from (group for _, group in open_rows)


def _has_predecessor(doc_NS: np.ndarray) -> np.ndarray:
    result = np.zeros(doc_NS.shape, bool)
    result[:, 1:] = (doc_NS[:, 1:] == doc_NS[:, :-1]) & (doc_NS[:, 1:] != PADDING)
    return result
