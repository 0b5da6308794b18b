"""The numbers of a step by value: means over rollouts, never over rows, and missing is not zero."""

import math

import pytest

from etude.records import Outcome
from etude.records.ledger import Disposition, LedgerEntry
from etude.runtime.metrics import StepClock, step_metrics
from tests.runtime.rollouts import rollout


def entry(how: Disposition, *args: object, **fields: object) -> LedgerEntry:
    return LedgerEntry(rollout(*args, **fields), 3, how)


def test_every_number_of_a_step() -> None:
    settled = [
        entry(
            Disposition.TRAINED, 0, 0, Outcome.SOLVED, steps=(1, 1, 1), counts={"turns": 4, "summaries": 1},
            seconds={"tool": 1.0, "model": 3.0, "grade": 0.5},
        ),
        entry(Disposition.TRAINED, 0, 1, Outcome.OVERLONG, steps=(1,), counts={"turns": 8, "tool_errors": 2}),
        entry(Disposition.NO_GRADIENT, 1, 0, Outcome.SOLVED, steps=(1, 1)),
        entry(Disposition.NO_GRADIENT, 1, 1, Outcome.SOLVED, steps=(1, 1)),
        entry(Disposition.STALE, 2, 0, Outcome.FAILED, steps=()),
        entry(Disposition.INFRA, 3, 0, Outcome.INFRA_FAULT, steps=(1,) * 50, counts={"turns": 99}),
        entry(Disposition.INFRA, 3, 1, Outcome.SOLVED, steps=(1, 1)),
    ]  # fmt: skip
    row = step_metrics(settled, StepClock(), 1000)
    wanted = {
        "reward_mean": 4 / 6, "solved_rate": 4 / 6, "rollouts_trained": 2, "rollouts_graded": 6, "groups_trained": 1,
        "groups_no_gradient": 1, "dropped_stale": 1, "infra_faults": 2, "turns_mean": 12 / 6, "tool_errors_mean": 2 / 6,
        "summaries_per_rollout": 1 / 6, "overlong": 1, "sampled_per_rollout": 10 / 6, "tokens_per_solved": 10 / 4,
        "tool_s_mean": 1 / 6, "grade_s_mean": 0.5 / 6, "model_s_mean": 3 / 6, "tokens_sampled": 1000,
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    assert row["seconds_per_solved"] == pytest.approx(row["step_s"] / 4)
    assert row["sampled_tokens_per_s"] == pytest.approx(1000 / row["step_s"])


def test_fault_28_metrics_count_rows() -> None:
    """A solved rollout of five rows and an unsolved one of one row: the mean reward is 0.5, not 0.83."""
    settled = [
        entry(Disposition.TRAINED, 0, 0, Outcome.SOLVED, segments=5),
        entry(Disposition.TRAINED, 0, 1, Outcome.FAILED),
    ]
    row = step_metrics(settled, StepClock(), 0)
    assert row["reward_mean"] == row["solved_rate"] == 0.5
    assert row["sampled_per_rollout"] == 3.0


@pytest.mark.parametrize("settled", [[], [entry(Disposition.INFRA, 0, 0, Outcome.INFRA_FAULT)]], ids=["none", "infra"])
def test_a_mean_over_nothing_is_missing_and_not_zero(settled: list[LedgerEntry]) -> None:
    row = step_metrics(settled, StepClock(), 0)
    means = [name for name in row if name.endswith(("_mean", "_rate", "_per_rollout"))]
    assert len(means) == 9
    assert all(math.isnan(row[name]) for name in means)
    assert row["tokens_per_solved"] is None and row["seconds_per_solved"] is None
    assert row["rollouts_graded"] == 0


def test_nothing_solved_has_no_cost_per_solved() -> None:
    row = step_metrics([entry(Disposition.TRAINED, 0, 0, Outcome.FAILED)], StepClock(), 7)
    assert (row["solved_rate"], row["tokens_per_solved"], row["seconds_per_solved"]) == (0.0, None, None)


def test_the_clock_tells_phases_and_tokens_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    clock = StepClock()
    for lap in (2.0, 3.0):
        clock.start()
        now += lap
        clock.lap("wait_s")
        now += 1.0
        clock.lap("train_wall_s")
        now += 0.5
    assert clock.laps == {"wait_s": 3.0, "train_wall_s": 1.0}
    assert clock.finish(50) == (4.5, 50)
    clock.start()
    now += 1.0
    assert clock.finish(80) == (1.0, 30)
    assert clock.laps == {}
