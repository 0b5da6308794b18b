"""Advantages are taken over rollouts, never rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.rl import group_advantages, has_gradient
from tests.rl.play import rollout, segment

RNG = np.random.default_rng(0)


def rows(count: int) -> list:  # type: ignore[type-arg]
    return [segment("pps", RNG) for _ in range(count)]


def test_kind_baseline_over_rows() -> None:
    """A solved in one segment, B failed in four: over rows the mean would be 0.2, and over rewards cut into rows B's
    success would even be punished. Over rollouts: +0.5 and -0.5."""
    group = [rollout("A", rows(1), 1.0), rollout("B", rows(4), 0.0)]
    assert group_advantages(group) == {"A": 0.5, "B": -0.5}
    swapped = [rollout("A", rows(1), 1.0), rollout("B", rows(4), 1.0)]
    assert group_advantages(swapped) == {"A": 0.0, "B": 0.0}


def test_kind_ragged_groups() -> None:
    """Groups of 4, 3 and 4 with rewards all 1, all 5, all 12: a flat mean gives the second group -1.09."""
    batch = [
        rollout(f"{group}{n}", rows(1 + n), reward, group)
        for group, size, reward in (("a", 4, 1.0), ("b", 3, 5.0), ("c", 4, 12.0))
        for n in range(size)
    ]
    assert set(group_advantages(batch).values()) == {0.0}
    assert not any(has_gradient([r for r in batch if r.group_id == group]) for group in "abc")


def test_kind_baseline_from_the_wrong_members() -> None:
    """A rollout that was taken out takes its reward with it: the one that is left has nothing to be compared with."""
    assert group_advantages([rollout("kept", rows(1), 0.0)]) == {"kept": 0.0}


def test_order_and_interleaving_of_groups_do_not_matter() -> None:
    batch = [rollout(f"{group}{n}", rows(1), float(n == 0), group) for n in range(4) for group in "ab"]
    assert group_advantages(batch) == group_advantages(batch[::-1])
    assert group_advantages(batch)["a0"] == 0.75
    assert group_advantages(batch)["b3"] == -0.25


def test_kind_harness_failure_scored_as_zero() -> None:
    """Missing is not zero: a rollout without a reward is an error here, never a 0."""
    group = [rollout("a", rows(1), 1.0), rollout("lost", rows(1), None)]
    with pytest.raises(ValueError, match="rollout lost ended infra_fault and has no reward"):
        group_advantages(group)


def test_no_division_by_the_deviation() -> None:
    assert group_advantages([rollout("a", rows(1), 10.0), rollout("b", rows(1), 0.0)]) == {"a": 5.0, "b": -5.0}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-8, 8), st.integers(1, 3)), min_size=1, max_size=12))
@settings(deadline=None, max_examples=60)
def test_by_a_slow_loop(drawn: list[tuple[str, int, int]]) -> None:
    batch = [rollout(f"r{n}", rows(count), float(reward), group) for n, (group, reward, count) in enumerate(drawn)]
    found = group_advantages(batch)
    for one in batch:
        rewards = [other.reward for other in batch if other.group_id == one.group_id]
        assert found[one.rollout_id] == pytest.approx(one.reward - sum(rewards) / len(rewards))
    for group in {one.group_id for one in batch}:
        members = [one for one in batch if one.group_id == group]
        assert sum(found[one.rollout_id] for one in members) == pytest.approx(0, abs=1e-9)
        assert has_gradient(members) == any(found[one.rollout_id] != 0 for one in members)
