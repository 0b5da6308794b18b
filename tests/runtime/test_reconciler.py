"""Every rollout is accounted for once; nothing too old is trained; trouble is tried again."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.records import Outcome, Rollout, UserError
from etude.records.ledger import Disposition
from etude.runtime.reconciler import Cursor, Reconciler
from tests.runtime.rollouts import BROKEN, FLAT, MIXED, config, group, rollout


def started(reconciler: Reconciler) -> list[int]:
    return [number for number, _ in reconciler.admit()]


def step(reconciler: Reconciler, *numbers: int) -> None:
    """Finish the groups with gradient, train them, publish."""
    for number in numbers:
        reconciler.finished(number, group(number, MIXED, (reconciler.version,)))
    assert reconciler.ready()
    reconciler.take_batch()
    reconciler.published(reconciler.version + 1)


def account(reconciler: Reconciler) -> dict[str, list[str]]:
    entries = reconciler.drain_settled()
    return {
        how: [entry.rollout.rollout_id for entry in entries if entry.disposition is how]
        for how in {entry.disposition for entry in entries}
    }


def test_fault_18_budget_not_restored() -> None:
    """AReaL's numbers: eta 2, batch 8, resumed at version 100 with nothing running: 24 rollouts may start, not 824."""
    reconciler = Reconciler(config(group_size=4, groups_per_step=2, max_staleness=2), max_in_flight=1000)
    reconciler.restore({"version": 100, "low": 250, "above": []})
    assert reconciler.batch_size == 8
    assert reconciler.capacity() == 24


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_fault_24_zero_in_a_formula(staleness: int) -> None:
    """Without any lag allowed one batch still runs."""
    reconciler = Reconciler(config(max_staleness=staleness), max_in_flight=1000)
    assert reconciler.capacity() == (staleness + 1) * 4
    assert started(reconciler) == list(range((staleness + 1) * 2))
    assert started(reconciler) == []


def test_what_runs_never_exceeds_the_limit() -> None:
    reconciler = Reconciler(config(max_staleness=9), max_in_flight=5)
    assert started(reconciler) == [0, 1]  # two groups of two; a third would make six rollouts
    reconciler.finished(1, group(1, MIXED))
    assert started(reconciler) == [2]


def test_a_limit_below_one_group_is_told_and_not_waited_for() -> None:
    with pytest.raises(UserError, match=r"max_in_flight = 1 holds no group of rl\.group_size = 2"):
        Reconciler(config(), max_in_flight=1)


def test_a_batch_is_trained_once_with_advantages_over_its_groups() -> None:
    reconciler = Reconciler(config(), max_in_flight=100)
    reconciler.admit()
    reconciler.finished(1, group(1, MIXED))
    assert not reconciler.ready()
    reconciler.finished(0, group(0, MIXED[::-1]))
    assert reconciler.ready()
    batch = reconciler.take_batch()
    assert batch.advantages == {"g0-0-a0": -0.5, "g0-1-a0": 0.5, "g1-0-a0": 0.5, "g1-1-a0": -0.5}
    assert [r.rollout_id for r in batch.rollouts] == list(batch.advantages)
    entries = reconciler.drain_settled()
    assert {e.rollout.rollout_id: e.advantage for e in entries} == batch.advantages
    assert {e.disposition for e in entries} == {Disposition.TRAINED} and {e.step for e in entries} == {0}
    assert reconciler.drain_settled() == []
    assert not reconciler.ready()


def test_a_group_without_gradient_is_dropped_and_replaced() -> None:
    reconciler = Reconciler(config(max_staleness=0), max_in_flight=100)
    assert started(reconciler) == [0, 1]
    reconciler.finished(0, group(0, FLAT))
    assert started(reconciler) == [2]
    assert account(reconciler) == {Disposition.NO_GRADIENT: ["g0-0-a0", "g0-1-a0"]}


def test_infrastructure_trouble_runs_the_whole_group_again_and_is_in_the_account() -> None:
    reconciler = Reconciler(config(max_staleness=0), max_in_flight=100)
    reconciler.admit()
    reconciler.finished(0, group(0, BROKEN))
    assert reconciler.admit() == [(0, 1)]
    assert account(reconciler) == {Disposition.INFRA: ["g0-0-a0", "g0-1-a0"]}
    assert 0 not in reconciler.cursor
    reconciler.finished(0, group(0, BROKEN, attempt=1))
    assert reconciler.admit() == [(0, 2)]
    step_groups = group(0, MIXED, attempt=2)
    reconciler.finished(0, step_groups)
    reconciler.finished(1, group(1, MIXED))
    reconciler.ready()
    assert {r.rollout_id for r in reconciler.take_batch().rollouts} >= {"g0-0-a2", "g0-1-a2"}


def test_fault_9_harness_failure_scored_as_zero() -> None:
    """Two of three members of a finished group were lost to the grader: none of it becomes a reward."""
    reconciler = Reconciler(config(group_size=3), max_in_flight=100)
    reconciler.admit()
    outcomes = (Outcome.FAILED, Outcome.INFRA_FAULT, Outcome.INFRA_FAULT)
    reconciler.finished(0, group(0, outcomes))
    assert not reconciler.ready()
    assert [entry.rollout.reward for entry in reconciler.drain_settled()] == [0.0, None, None]


def test_a_rollout_that_was_stopped_is_aborted_and_run_again() -> None:
    reconciler = Reconciler(config(), max_in_flight=100)
    reconciler.admit()
    reconciler.finished(0, group(0, (Outcome.ABORTED, Outcome.ABORTED)))
    assert account(reconciler) == {Disposition.ABORTED: ["g0-0-a0", "g0-1-a0"]}
    assert reconciler.admit()[0] == (0, 1)


def test_fault_23_one_straggler_no_deadline() -> None:
    """A group that did not come back in time runs again before anything new."""
    reconciler = Reconciler(config(), max_in_flight=100)
    assert started(reconciler) == [0, 1, 2, 3]
    reconciler.lost(2)
    assert reconciler.admit() == [(2, 1)]
    reconciler.lost(2)
    assert reconciler.admit() == [(2, 2)]


@pytest.mark.parametrize("size", [0, 1, 3])
def test_fault_6_ragged_groups(size: int) -> None:
    reconciler = Reconciler(config(), max_in_flight=100)
    reconciler.admit()
    with pytest.raises(ValueError, match=f"group 0 came back with {size} rollouts, expected 2"):
        reconciler.finished(0, group(0, [Outcome.SOLVED] * size))


def test_a_group_that_comes_back_twice_is_refused() -> None:
    reconciler = Reconciler(config(), max_in_flight=100)
    reconciler.admit()
    reconciler.finished(0, group(0, MIXED))
    with pytest.raises(ValueError, match="group 0 came back but is not running"):
        reconciler.finished(0, group(0, MIXED))


def test_what_is_too_old_is_dropped_and_never_trained() -> None:
    reconciler = Reconciler(config(max_staleness=1), max_in_flight=100)
    assert started(reconciler) == [0, 1, 2, 3]
    step(reconciler, 1, 2)
    started(reconciler)
    step(reconciler, 3, 4)
    started(reconciler)
    reconciler.finished(0, group(0, MIXED, steps=(0, 2)))  # begun by version 0, now two versions back
    reconciler.finished(5, group(5, MIXED, steps=(1,)))
    reconciler.drain_settled()
    assert not reconciler.ready()
    assert account(reconciler) == {Disposition.STALE: ["g0-0-a0", "g0-1-a0"]}
    assert 0 in reconciler.cursor


def test_staleness_counts_from_the_oldest_token_of_the_group() -> None:
    reconciler = Reconciler(config(max_staleness=0), max_in_flight=100)
    reconciler.admit()
    step(reconciler, 0, 1)
    assert started(reconciler) == [2, 3]
    reconciler.finished(2, [rollout(2, 0, Outcome.SOLVED, (1, 1)), rollout(2, 1, Outcome.FAILED, (0, 1))])
    reconciler.finished(3, group(3, MIXED, (1,)))
    assert not reconciler.ready()
    assert set(account(reconciler)) == {Disposition.TRAINED, Disposition.STALE}
    assert started(reconciler) == [4]  # the budget of what was dropped is free again


def test_a_group_in_which_nothing_was_sampled_is_not_stale() -> None:
    """The control experiment keeps groups without gradient, such as one whose task was too long for the context."""
    reconciler = Reconciler(config(shuffle_rewards=True), max_in_flight=100)
    reconciler.admit()
    for number in (0, 1):
        reconciler.finished(number, [rollout(number, k, Outcome.OVERLONG, segments=0) for k in range(2)])
    assert reconciler.ready()


def test_fault_19_cursor_ahead_of_training() -> None:
    """Ids 0 to 7, four generated, two trained, killed: 2 and 3 run again, and so does all that was waiting."""
    reconciler = Reconciler(config(), max_in_flight=100)
    assert started(reconciler) == [0, 1, 2, 3]
    reconciler.finished(2, group(2, MIXED))
    step(reconciler, 0, 1)
    state = reconciler.state()
    assert state == {"version": 1, "low": 2, "above": []}
    resumed = Reconciler(config(), max_in_flight=100)
    resumed.restore(state)
    assert started(resumed) == [2, 3, 4, 5]


def test_fault_20_a_gap_pins_the_cursor() -> None:
    """150 groups, the third dropped for its age: the position goes on past it."""
    reconciler = Reconciler(config(max_staleness=0), max_in_flight=10_000)
    reconciler.admit()
    step(reconciler, 0, 1)
    reconciler.admit()
    reconciler.finished(2, group(2, MIXED, (0,)))
    reconciler.finished(3, group(3, MIXED, (1,)))
    assert not reconciler.ready()  # 2 is dropped
    assert started(reconciler) == [4]
    step(reconciler, 4)
    for first in range(5, 151, 2):
        assert started(reconciler) == [first, first + 1]
        step(reconciler, first, first + 1)
    assert reconciler.state() == {"version": 75, "low": 151, "above": []}


def test_fault_22_fast_rollouts_win() -> None:
    """A group that takes long is waited for: it is never skipped in the stream, and within the bound it is trained."""
    reconciler = Reconciler(config(max_staleness=3), max_in_flight=100)
    started(reconciler)
    for numbers in ((1, 2), (3, 4), (5, 6)):
        step(reconciler, *numbers)
        started(reconciler)
    state = reconciler.state()
    assert state["low"] == 0 and state["above"] == [1, 2, 3, 4, 5, 6]
    resumed = Reconciler(config(max_staleness=3), max_in_flight=100)
    resumed.restore(state)
    assert started(resumed)[:2] == [0, 7]
    reconciler.finished(0, group(0, MIXED, (0, 1, 2, 3)))
    reconciler.finished(7, group(7, MIXED, (3,)))
    assert reconciler.ready()
    assert {r.group_id for r in reconciler.take_batch().rollouts} == {"g0", "g7"}


def test_versions_advance_one_by_one() -> None:
    with pytest.raises(AssertionError, match="version 2 published after 0"):
        Reconciler(config(), max_in_flight=100).published(2)


def shuffling(seed: int, *groups: list[Rollout]) -> tuple[dict[str, float], list[Rollout]]:
    """Advantages of one step of the control experiment, and the rollouts as the ledger gets them."""
    size = len(groups[0])
    reconciler = Reconciler(
        config(shuffle_rewards=True, seed=seed, group_size=size, groups_per_step=len(groups)), max_in_flight=100
    )
    reconciler.admit()
    for number, rollouts in enumerate(groups):
        reconciler.finished(number, rollouts)
    assert reconciler.ready()
    batch = reconciler.take_batch()
    return batch.advantages, [entry.rollout for entry in reconciler.drain_settled()]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8), st.integers(0, 99))
def test_shuffled_rewards_are_the_same_rewards(rewards: list[int], seed: int) -> None:
    one = [msgspec.structs.replace(rollout(0, k), reward=float(reward)) for k, reward in enumerate(rewards)]
    advantages, kept = shuffling(seed, one)
    mean = sum(rewards) / len(rewards)
    assert sorted(advantages.values()) == pytest.approx(sorted(reward - mean for reward in rewards))
    assert [r.reward for r in kept] == rewards  # the ledger tells the truth


def test_rewards_are_shuffled_over_the_step_and_differently_each_time() -> None:
    flat = [group(0, (Outcome.SOLVED, Outcome.SOLVED)), group(1, FLAT)]  # kept, although no group has a gradient
    seen = {tuple(shuffling(seed, *flat)[0].values()) for seed in range(30)}
    assert (0.0, 0.0, 0.0, 0.0) in seen
    assert len(seen) > 3


@given(st.permutations(range(12)))
def test_the_cursor_is_the_set_of_what_is_settled(order: list[int]) -> None:
    cursor = Cursor()
    for count, number in enumerate(order, 1):
        assert number not in cursor
        cursor.settle(number)
        done = set(order[:count])
        assert {n for n in range(13) if n in cursor} == done
        assert cursor.low == min(set(range(13)) - done)
        assert cursor.above == {n for n in done if n > cursor.low}
        with pytest.raises(ValueError, match=f"group {number} is settled twice"):
            cursor.settle(number)
    assert (cursor.low, cursor.above) == (12, set())
