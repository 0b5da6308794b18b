"""Rollouts without tokens of interest, as the reconciler sees them."""

from collections.abc import Sequence

import numpy as np

from etude.config.rl import RLConfig
from etude.records import Origin, Outcome, PolicyVersion, Rollout, Segment, VersionSpan


def segment(steps: Sequence[int]) -> Segment:
    """One prompt token, then one sampled token a step, each sampled by the version of that step."""
    count = len(steps)
    return Segment(
        ids_T=np.arange(count + 1, dtype=np.int32),
        origin_T=np.array([Origin.PROMPT] + [Origin.SAMPLED] * count, np.uint8),
        logprob_T=np.array([np.nan] + [-1.0] * count, np.float32),
        routes_TLK=np.full((count + 1, 1, 1), -1, np.int16),
        spans=tuple(VersionSpan(at, at + 1, PolicyVersion(step, f"{step:032x}")) for at, step in enumerate(steps, 1)),
    )


def rollout(
    group: int,
    member: int = 0,
    outcome: Outcome = Outcome.SOLVED,
    steps: Sequence[int] = (0,),
    attempt: int = 0,
    segments: int = 1,
    **fields: object,
) -> Rollout:
    """`segments` equal segments; every other field as a worker would fill it."""
    return Rollout(
        rollout_id=f"g{group}-{member}-a{attempt}",
        group_id=f"g{group}",
        task_id=f"task-{group}",
        tier=1,
        attempt=attempt,
        segments=tuple(segment(steps) for _ in range(segments)),
        outcome=outcome,
        reward=outcome.reward,
        **fields,
    )


def group(number: int, outcomes: Sequence[Outcome], steps: Sequence[int] = (0,), attempt: int = 0) -> list[Rollout]:
    return [rollout(number, member, outcome, steps, attempt) for member, outcome in enumerate(outcomes)]


MIXED = (Outcome.SOLVED, Outcome.FAILED)
FLAT = (Outcome.FAILED, Outcome.FAILED)
BROKEN = (Outcome.SOLVED, Outcome.INFRA_FAULT)


def config(**fields: object) -> RLConfig:
    """Groups of two, two groups a step, one version of lag."""
    return RLConfig(**{"group_size": 2, "groups_per_step": 2, "max_staleness": 1, **fields})
