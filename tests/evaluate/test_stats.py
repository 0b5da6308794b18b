"""Intervals have known values, cover the truth as often as they say, and treat tasks, not samples, as independent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.evaluate.stats import bootstrap_mean, paired_difference, wilson
from etude.records import UserError


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Worked out by hand from (p + z2/2n -+ z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n) with z2 = 3.8416.
        (0, 10, 0.0, 0.277540),
        (10, 10, 0.722460, 1.0),
        (5, 10, 0.236593, 0.763407),
        (1, 1, 0.206543, 1.0),
        (81, 263, 0.255289, 0.366210),
    ],
)
def test_wilson_has_known_values(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-4)
    assert (interval.mean, interval.n) == (successes / n, n)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_mean_and_mirrors(case: tuple[int, int]) -> None:
    successes, n = case
    interval, mirrored = wilson(successes, n), wilson(n - successes, n)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    assert interval.low < interval.high
    assert mirrored.low == pytest.approx(1 - interval.high, abs=1e-12)


def test_wilson_solves_its_own_equation() -> None:
    """Each edge is the proportion whose normal test statistic is exactly z."""
    interval = wilson(7, 40)
    for edge in (interval.low, interval.high):
        assert abs(interval.mean - edge) / np.sqrt(edge * (1 - edge) / 40) == pytest.approx(1.96)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(UserError, match=f"{successes} successes of {n} trials"):
        wilson(successes, n)


def test_bootstrap_of_single_values_has_the_width_of_the_normal_interval() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(5, 2, 400)
    interval = bootstrap_mean({str(index): [value] for index, value in enumerate(values)}, seed=3)
    half = 1.96 * values.std() / np.sqrt(400)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.02)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.02)
    assert interval.n == 400


def test_more_samples_of_the_same_tasks_do_not_narrow_the_interval() -> None:
    few = {"a": [1.0], "b": [0.0], "c": [1.0], "d": [0.0]}
    many = {task: values * 100 for task, values in few.items()}
    assert bootstrap_mean(many, seed=0) == bootstrap_mean(few, seed=0)
    assert wilson(200, 400).high - wilson(200, 400).low < 0.1 < bootstrap_mean(many).high - bootstrap_mean(many).low


def test_every_task_weighs_the_same() -> None:
    assert bootstrap_mean({"a": [1.0] * 9, "b": [0.0]}).mean == 0.5


def test_the_interval_depends_on_data_and_seed_only() -> None:
    values = {str(index): [index**0.5] for index in range(30)}
    turned = dict(reversed(values.items()))
    assert bootstrap_mean(values, seed=5) == bootstrap_mean(turned, seed=5)
    assert bootstrap_mean(values, seed=5) != bootstrap_mean(values, seed=6)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(120):
        tasks = rng.beta(2, 2, 60)
        values = {str(task): rng.binomial(1, p, 4).tolist() for task, p in enumerate(tasks)}
        interval = bootstrap_mean(values, seed=trial)
        hits += interval.low <= 0.5 <= interval.high
    assert 106 <= hits <= 120  # 95 % of 120 is 114; a 90 % interval would give 108 and 80 % would give 96


def test_pairing_uses_shared_tasks_and_is_narrower_than_two_means() -> None:
    rng = np.random.default_rng(2)
    hardness = rng.random(50)
    before = {str(task): [p] for task, p in enumerate(hardness)} | {"only before": [100.0]}
    after = {str(task): [p + 0.1 + rng.normal(0, 0.01)] for task, p in enumerate(hardness)} | {"only after": [-9.0]}
    gain = paired_difference(before, after)
    assert gain.n == 50
    assert gain.mean == pytest.approx(0.1, abs=0.005)
    assert gain.high - gain.low < 0.01
    del before["only before"]
    alone = bootstrap_mean(before)
    assert alone.high - alone.low > 0.1


def test_no_change_is_zero_with_no_width() -> None:
    same = {"a": [1, 0], "b": [1, 1]}
    gain = paired_difference(same, same)
    assert (gain.mean, gain.low, gain.high, gain.n) == (0.0, 0.0, 0.0, 2)


def test_nothing_to_average_is_refused() -> None:
    with pytest.raises(UserError, match="no task"):
        bootstrap_mean({})
    with pytest.raises(UserError, match="task b has no value"):
        bootstrap_mean({"a": [1.0], "b": []})
    with pytest.raises(UserError, match="1 tasks before and 2 after, none in common"):
        paired_difference({"a": [1]}, {"b": [1], "c": [0]})
