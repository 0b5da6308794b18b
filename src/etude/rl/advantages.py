"""Advantages of rollouts.

Invariant: statistics are taken over the rollouts of a group, looked up by id, never over rows: a rollout that
summarised itself into five segments counts once, and all its segments share its advantage.

A_i = R_i - mean of R over the group; no division by the standard deviation, no length normalisation (Dr. GRPO,
arXiv 2503.20783; Composer 2, arXiv 2603.24477, section 4.1).
"""

from collections import defaultdict
from collections.abc import Sequence

from etude.records import Rollout


def group_advantages(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Advantage by rollout id. Raises ValueError for a rollout without a reward: missing is not zero."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.reward is None:
            raise ValueError(
                f"rollout {rollout.rollout_id} ended {rollout.outcome.value} and has no reward to learn from"
            )
        rewards[rollout.group_id].append(rollout.reward)
    means = {group: sum(values) / len(values) for group, values in rewards.items()}
    return {r.rollout_id: r.reward - means[r.group_id] for r in rollouts if r.reward is not None}


def has_gradient(group: Sequence[Rollout]) -> bool:
    """Whether a group's rewards differ at all; where they do not, every advantage is zero."""
    return len({rollout.reward for rollout in group}) > 1
