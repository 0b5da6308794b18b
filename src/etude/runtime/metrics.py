"""The numbers of one RL step, from what was settled in it.

Invariant: means are over rollouts, never over rows, and what has no reward is in no mean of rewards. A mean over
nothing is NaN, not 0.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence

from etude.records import Outcome
from etude.records.ledger import Disposition, LedgerEntry


class StepClock:
    """Wall time of a step, by phase, and tokens sampled since the step before."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._began = self._last = time.perf_counter()
        self._tokens = 0

    def start(self) -> None:
        """A step begins."""
        self.laps = {}
        self._began = self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """The phase `name` ends now."""
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now

    def finish(self, tokens_so_far: int) -> tuple[float, int]:
        """(seconds of the step, tokens sampled during it)."""
        tokens, self._tokens = tokens_so_far - self._tokens, tokens_so_far
        return time.perf_counter() - self._began, tokens


def step_metrics(settled: Sequence[LedgerEntry], clock: StepClock, tokens_so_far: int) -> dict[str, float | int | None]:
    """Rewards, outcomes and costs; see docs/rl.md for each name."""
    graded = [e.rollout for e in settled if e.rollout.reward is not None]
    how = Counter(entry.disposition for entry in settled)
    trained_groups = {e.rollout.group_id for e in settled if e.disposition is Disposition.TRAINED}
    flat_groups = {e.rollout.group_id for e in settled if e.disposition is Disposition.NO_GRADIENT}
    solved = sum(rollout.outcome is Outcome.SOLVED for rollout in graded)
    seconds, tokens = clock.finish(tokens_so_far)
    count = len(graded) or math.nan  # anything divided by NaN is NaN
    return {
        "reward_mean": sum(rollout.reward or 0.0 for rollout in graded) / count,
        "solved_rate": solved / count,
        "rollouts_trained": how[Disposition.TRAINED],
        "rollouts_graded": len(graded),
        "groups_trained": len(trained_groups),
        "groups_no_gradient": len(flat_groups),
        "dropped_stale": how[Disposition.STALE],
        "infra_faults": how[Disposition.INFRA],
        "turns_mean": sum(rollout.counts.get("turns", 0) for rollout in graded) / count,
        "tool_errors_mean": sum(rollout.counts.get("tool_errors", 0) for rollout in graded) / count,
        "summaries_per_rollout": sum(rollout.counts.get("summaries", 0) for rollout in graded) / count,
        "overlong": sum(rollout.outcome is Outcome.OVERLONG for rollout in graded),
        "sampled_per_rollout": sum(rollout.sampled_tokens for rollout in graded) / count,
        "tokens_per_solved": sum(rollout.sampled_tokens for rollout in graded) / solved if solved else None,
        "seconds_per_solved": seconds / solved if solved else None,
        "tool_s_mean": sum(rollout.seconds.get("tool", 0.0) for rollout in graded) / count,
        "grade_s_mean": sum(rollout.seconds.get("grade", 0.0) for rollout in graded) / count,
        "model_s_mean": sum(rollout.seconds.get("model", 0.0) for rollout in graded) / count,
        "tokens_sampled": tokens,
        "sampled_tokens_per_s": tokens / seconds,
        "step_s": seconds,
        **clock.laps,
    }
