"""Rollouts as padded tensors.

Invariant: every sampled token of every rollout appears in exactly one row, beside the advantage of its rollout, and the
routes of a row follow its tokens (padding carries -1, never expert 0).

Shape legend: B rows, T tokens of the longest row, L MoE layers, K experts per token, N sampled tokens of a micro-batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.models import PADDING
from etude.records import MISSING_ROUTE, Rollout, Segment


@dataclass(frozen=True)
class MicroBatch:
    """Rows of similar length. Per-token vectors of length N are in row-major order of `sampled_BT`."""

    ids_BT: Tensor
    doc_BT: Tensor
    sampled_BT: Tensor
    routes_BTLK: Tensor
    sampler_logprobs_N: Tensor
    advantages_N: Tensor
    steps_N: Tensor  # trainer step of the version that sampled the token
    needed_rows: int  # tokens whose routes matter: all but the last of each row
    captured_rows: int


def micro_batches(
    rollouts: Sequence[Rollout], advantages: Mapping[str, float], micro_tokens: int
) -> Iterator[MicroBatch]:
    """Cut the segments, shortest first, into batches of at most `micro_tokens` padded tokens (at least one row)."""
    rows = [(segment, advantages[rollout.rollout_id]) for rollout in rollouts for segment in rollout.segments]
    rows.sort(key=lambda row: len(row[0]))
    batch: list[tuple[Segment, float]] = []
    for row in rows:
        if batch and len(row[0]) * (len(batch) + 1) > micro_tokens:
            yield _collate(batch)
            batch = []
        batch.append(row)
    if batch:
        yield _collate(batch)


def _collate(rows: Sequence[tuple[Segment, float]]) -> MicroBatch:
    count, longest = len(rows), max(len(segment) for segment, _ in rows)
    n_layers, top_k = rows[0][0].routes_TLK.shape[1:]
    ids = np.zeros((count, longest), np.int64)
    doc = np.full((count, longest), PADDING, np.int64)
    sampled = np.zeros((count, longest), bool)
    routes = np.full((count, longest, n_layers, top_k), MISSING_ROUTE, np.int16)
    for b, (segment, _) in enumerate(rows):
        length = len(segment)
        ids[b, :length], doc[b, :length] = segment.ids_T, 0
        sampled[b, :length], routes[b, :length] = segment.sampled_T, segment.routes_TLK
    captured = sum(int((s.routes_TLK[:-1] != MISSING_ROUTE).all((1, 2)).sum()) for s, _ in rows)
    return MicroBatch(
        ids_BT=torch.from_numpy(ids),
        doc_BT=torch.from_numpy(doc),
        sampled_BT=torch.from_numpy(sampled),
        routes_BTLK=torch.from_numpy(routes),
        sampler_logprobs_N=torch.from_numpy(np.concatenate([s.logprob_T[s.sampled_T] for s, _ in rows])),
        advantages_N=torch.tensor([a for s, a in rows for _ in range(int(s.sampled_T.sum()))], dtype=torch.float32),
        steps_N=torch.from_numpy(np.concatenate([_steps(s) for s, _ in rows])),
        needed_rows=sum(len(s) - 1 for s, _ in rows),
        captured_rows=captured,
    )


def _steps(segment: Segment) -> np.ndarray:
    steps = [(span.version.step, span.end - span.start) for span in segment.spans]
    return np.repeat([step for step, _ in steps], [count for _, count in steps]).astype(np.int64)
