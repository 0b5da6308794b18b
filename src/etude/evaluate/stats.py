"""Intervals for scores: what a number of solved tasks says about the model, and no more.

Invariant: samples of one task are never treated as independent tasks. Several samples a task are averaged first, and
only tasks are resampled; a difference between two checkpoints is taken task by task, on the tasks both have.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from etude.records import UserError

_RESAMPLES = 10_000  # the 2.5 % tail then holds 250 draws: an edge moves by about 2 % of the interval between seeds


class Interval(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval. `n`: what was resampled or counted (tasks, or trials for `wilson`)."""

    mean: float
    low: float
    high: float
    n: int


def wilson(successes: int, n: int, z: float = 1.96) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927): right at 0 and at n, where a normal interval has no width.

    Raises UserError for n < 1 or successes outside 0..n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise UserError(f"wilson: {successes} successes of {n} trials; expected 0 <= successes <= n and n >= 1")
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half  # exactly 0 and 1 on paper, not in floating point
    high = 1.0 if successes == n else centre + half
    return Interval(share, low, high, n)


def bootstrap_mean(values_by_task: Mapping[str, Sequence[float]], seed: int = 0) -> Interval:
    """Mean over tasks of each task's mean, with a percentile bootstrap over tasks (the clusters).

    `values_by_task`: task id to the values of its samples, e.g. 0 and 1 for pass@1. Every task weighs the same however
    many samples it has. Raises UserError when there is no task or a task has no value.
    """
    return _bootstrap(_task_means(values_by_task), seed)


def paired_difference(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]], seed: int = 0
) -> Interval:
    """Mean of `after - before` task by task, over the tasks that both have, with a bootstrap over those tasks.

    Pairing removes what tasks differ by, so the interval is usually narrower than that of two separate means.
    Raises UserError when they share no task.
    """
    shared = before.keys() & after.keys()
    if not shared:
        raise UserError(f"paired difference: {len(before)} tasks before and {len(after)} after, none in common")
    difference = _task_means({task: after[task] for task in shared}) - _task_means({t: before[t] for t in shared})
    return _bootstrap(difference, seed)


def _task_means(values_by_task: Mapping[str, Sequence[float]]) -> np.ndarray:
    """In the order of the task ids, so that the same data gives the same interval however it was collected."""
    empty = [task for task, values in values_by_task.items() if len(values) == 0]
    if empty or not values_by_task:
        raise UserError(f"bootstrap: {f'task {empty[0]} has no value' if empty else 'no task to average over'}")
    return np.array([np.mean(values_by_task[task]) for task in sorted(values_by_task)], dtype=np.float64)


def _bootstrap(means: np.ndarray, seed: int) -> Interval:
    count = len(means)
    rng = np.random.default_rng(seed)
    draws = np.empty(_RESAMPLES)
    block = max(1, 1_000_000 // count)  # 8 MB of indices at a time
    for start in range(0, _RESAMPLES, block):
        size = min(block, _RESAMPLES - start)
        draws[start : start + size] = means[rng.integers(0, count, (size, count))].mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(float(means.mean()), float(low), float(high), count)
