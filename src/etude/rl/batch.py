"""Rollouts as padded tensors, with the prompt that a group shares computed once.

Invariant: every sampled token of every rollout appears in exactly one row, beside the advantage of its rollout, and the
routes of a row follow its tokens (padding carries -1, never expert 0).

A row is a tree: the trunk, a prompt that several segments share, then their branches. A branch sees the trunk and
itself, at the positions it had in its own segment, so every token is scored as if its segment stood alone. Segments
share a trunk only if its ids *and* its routes agree: a prompt that was read under two versions is two trunks. With
groups of 8, a step of the quickstart computes 14,119 tokens instead of 26,273.

Shape legend: B rows, T tokens of the longest row, L MoE layers, K experts per token, N sampled tokens of a micro-batch.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.models import PADDING
from etude.records import MISSING_ROUTE, Origin, Rollout, Segment

ROW_TOKENS = 512  # of one tree; attention grows with the square of a row, and wider rows gain little


@dataclass(frozen=True)
class MicroBatch:
    """Rows of similar length. Per-token vectors of length N are in row-major order of `sampled_BT`."""

    ids_BT: Tensor
    doc_BT: Tensor  # 0 is the trunk, then one number a branch; -1 padding
    trunk_B: Tensor  # tokens of each row's trunk
    sampled_BT: Tensor
    routes_BTLK: Tensor
    sampler_logprobs_N: Tensor
    advantages_N: Tensor
    steps_N: Tensor  # trainer step of the version that sampled the token
    needed_rows: int  # tokens whose routes matter: those before the last sampled one of each segment
    captured_rows: int


@dataclass(frozen=True)
class _Tree:
    """Segments with an equal trunk of `trunk` tokens, each with its advantage."""

    trunk: int
    branches: list[tuple[Segment, float]]

    def __len__(self) -> int:
        return self.trunk + sum(len(segment) - self.trunk for segment, _ in self.branches)


def micro_batches(
    rollouts: Sequence[Rollout], advantages: Mapping[str, float], micro_tokens: int
) -> Iterator[MicroBatch]:
    """Cut the trees, shortest first, into batches of at most `micro_tokens` padded tokens (at least one row)."""
    trees = sorted(_trees(rollouts, advantages), key=len)
    batch: list[_Tree] = []
    for tree in trees:
        if batch and len(tree) * (len(batch) + 1) > micro_tokens:
            yield _collate(batch)
            batch = []
        batch.append(tree)
    if batch:
        yield _collate(batch)


def _trees(rollouts: Sequence[Rollout], advantages: Mapping[str, float]) -> Iterator[_Tree]:
    by_trunk: dict[tuple[bytes, bytes], list[tuple[Segment, float]]] = defaultdict(list)
    for rollout in rollouts:
        for segment in rollout.segments:
            trunk = _trunk(segment)
            key = (segment.ids_T[:trunk].tobytes(), segment.routes_TLK[:trunk].tobytes())
            by_trunk[key].append((segment, advantages[rollout.rollout_id]))
    for branches in by_trunk.values():
        tree = _Tree(_trunk(branches[0][0]), [])
        for segment, advantage in branches:
            if tree.branches and len(tree) + len(segment) - tree.trunk > ROW_TOKENS:
                yield tree
                tree = _Tree(tree.trunk, [])
            tree.branches.append((segment, advantage))
        yield tree


def _trunk(segment: Segment) -> int:
    """Leading prompt tokens but the last, which belongs to the branch: it predicts the first sampled token."""
    other = np.nonzero(segment.origin_T != Origin.PROMPT)[0]
    return max(0, int(other[0] if len(other) else len(segment)) - 1)


def _collate(trees: Sequence[_Tree]) -> MicroBatch:
    count, longest = len(trees), max(len(tree) for tree in trees)
    n_layers, top_k = trees[0].branches[0][0].routes_TLK.shape[1:]
    ids = np.zeros((count, longest), np.int64)
    doc = np.full((count, longest), PADDING, np.int64)
    sampled = np.zeros((count, longest), bool)
    routes = np.full((count, longest, n_layers, top_k), MISSING_ROUTE, np.int16)
    shapes = {segment.routes_TLK.shape[1:] for tree in trees for segment, _ in tree.branches}
    if len(shapes) > 1:  # numpy would spread one expert over all
        raise ValueError(f"batch: routes of several [layers, experts] together: {sorted(map(list, shapes))}")
    for b, tree in enumerate(trees):
        first, at = tree.branches[0][0], tree.trunk
        ids[b, :at], doc[b, :at], routes[b, :at] = first.ids_T[:at], 0, first.routes_TLK[:at]
        for number, (segment, _) in enumerate(tree.branches, 1):
            end = at + len(segment) - tree.trunk
            ids[b, at:end], doc[b, at:end] = segment.ids_T[tree.trunk :], number
            sampled[b, at:end], routes[b, at:end] = segment.sampled_T[tree.trunk :], segment.routes_TLK[tree.trunk :]
            at = end
    rows = [row for tree in trees for row in tree.branches]
    needed = [s.routes_TLK[: int(s.sampled_T.nonzero()[0].max(initial=0))] for s, _ in rows]
    return MicroBatch(
        ids_BT=torch.from_numpy(ids),
        doc_BT=torch.from_numpy(doc),
        trunk_B=torch.tensor([tree.trunk for tree in trees]),
        sampled_BT=torch.from_numpy(sampled),
        routes_BTLK=torch.from_numpy(routes),
        sampler_logprobs_N=torch.from_numpy(np.concatenate([s.logprob_T[s.sampled_T] for s, _ in rows])),
        advantages_N=torch.tensor([a for s, a in rows for _ in range(int(s.sampled_T.sum()))], dtype=torch.float32),
        steps_N=torch.from_numpy(np.concatenate([_steps(s) for s, _ in rows])),
        needed_rows=sum(len(routes_TLK) for routes_TLK in needed),
        captured_rows=sum(int((routes_TLK != MISSING_ROUTE).all((1, 2)).sum()) for routes_TLK in needed),
    )


def _steps(segment: Segment) -> np.ndarray:
    steps = [(span.version.step, span.end - span.start) for span in segment.spans]
    return np.repeat([step for step, _ in steps], [count for _, count in steps]).astype(np.int64)
