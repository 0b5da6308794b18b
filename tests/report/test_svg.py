"""A gap in the data is a gap in the line, zero has its own place on a logarithmic axis, and ticks are round."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.evaluate.stats import Interval
from etude.report.numbers import duration, number, percent, points
from etude.report.scale import linear, logarithmic
from etude.report.svg import POINTS, Line, Row, bars, intervals, lines
from tests.report.reader import Page

GAP = None


def marks(svg: str, kind: str, color: int) -> list[dict[str, str | None]]:
    """Elements that a series drew, without those that only the pointer shows."""
    drawn = re.sub(r'<g class="h".*?</g>', "", svg, flags=re.DOTALL)
    return [a for name, a in Page(drawn).tags if name == kind and str(color) in (a.get("class") or "")]


def test_a_gap_breaks_the_line_and_a_lone_value_is_a_dot() -> None:
    svg = lines(range(8), [Line("a", 0, [1.0, 2.0, GAP, 3.0, GAP, 4.0, 5.0, 6.0])], "step", "loss")
    paths = [a["d"] or "" for a in marks(svg, "path", 0)]
    assert [path.count("L") + 1 for path in paths] == [2, 3]
    assert len(marks(svg, "circle", 0)) == 1


def test_a_sparse_series_is_dots_and_only_where_it_was_measured() -> None:
    svg = lines(range(5), [Line("a", 0, [1.0, GAP, GAP, GAP, 2.0], sparse=True)], "step", "loss")
    assert len(marks(svg, "circle", 0)) == 2
    assert (marks(svg, "path", 0)[0]["class"], (marks(svg, "path", 0)[0]["d"] or "").count("L")) == ("hair s0", 1)


def test_the_pointer_reads_the_values_and_dashes_for_gaps() -> None:
    svg = lines([10, 20], [Line("a", 0, [0.25, 0.5]), Line("b", 1, [GAP, 7.0])], "step", "loss")
    words = [a["data-t"] for _, a in Page(svg).tags if "data-t" in a]
    assert words == ["step 10\na: 0.25\nb: –", "step 20\na: 0.5\nb: 7"]


def test_higher_values_are_drawn_higher_and_in_proportion() -> None:
    svg = lines([0, 1, 2], [Line("a", 0, [0.0, 5.0, 10.0])], "step", "loss", from_zero=True)
    places = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", marks(svg, "path", 0)[0]["d"] or "")]
    assert places[0] > places[1] > places[2]
    assert places[0] - places[1] == pytest.approx(places[1] - places[2], abs=0.11)


def test_many_rows_share_points_by_mean_or_by_peak() -> None:
    values = [float(index % 2) for index in range(4 * POINTS)]
    svg = lines(range(4 * POINTS), [Line("mean", 0, values), Line("peak", 1, values, peaks=True)], "step", "x")
    words = [a["data-t"] for _, a in Page(svg).tags if "data-t" in a]
    assert len(words) == POINTS
    assert words[0] == "step 0 to 3\nmean: 0.5\npeak: 1"


def test_series_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 places but a has 2 values"):
        lines([1, 2, 3], [Line("a", 0, [1.0, 2.0])], "step", "x")


@pytest.mark.parametrize("values", [[5.0], [0.0], [GAP, GAP, 1e-9], [-3.0, -3.0], [1e300, -1e300], [1e-320, 0.0]])
@pytest.mark.parametrize("log", [False, True])
def test_any_values_make_a_chart_with_finite_places(values: list[float | None], log: bool) -> None:
    svg = lines(range(len(values)), [Line("a", 0, values)], "step", "x", log=log)
    assert "nan" not in svg and "inf" not in svg


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20), st.booleans())
def test_a_linear_axis_holds_its_values_between_few_round_ticks(values: list[float], from_zero: bool) -> None:
    scale = linear(values, from_zero)
    assert 2 <= len(scale.ticks) <= 8
    for value in values:
        place = scale.place(value)
        assert place is not None and -1e-6 <= place <= 1 + 1e-6
    assert scale.place(None) is None and scale.place(math.nan) is None


def test_known_ticks() -> None:
    assert [tick.label for tick in linear([0.0, 0.83]).ticks] == ["0", "0.25", "0.5", "0.75", "1"]
    assert [tick.label for tick in linear([0.0, 1.0], shares=True).ticks][-1] == "100\u202f%"
    assert [tick.label for tick in logarithmic([2e-6, 3e-4]).ticks] == ["10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³"]


def test_zero_on_a_logarithmic_axis_lies_below_every_positive_value() -> None:
    scale = logarithmic([0.0, 1e-6, 1e-3])
    zero, small, large = (scale.place(value) for value in (0.0, 1e-6, 1e-3))
    assert zero == 0.0 and small == pytest.approx(0.12) and large == pytest.approx(1.0)
    assert scale.ticks[0].label == "0"
    assert scale.place(-1.0) is None
    assert logarithmic([1e-6, 1e-3]).place(0.0) is None


def test_intervals_are_drawn_to_scale_with_their_numbers() -> None:
    svg = intervals([Row("tier 1", [(0, Interval(0.5, 0.25, 1.0, 40), "after")])], "pass@1", gutter=100)
    start, end = map(float, re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", marks(svg, "path", 0)[0]["d"] or "")[0])
    dot = float(marks(svg, "circle", 0)[0]["cx"] or 0)
    assert (dot - start) / (end - start) == pytest.approx(1 / 3, abs=0.01)
    assert "50.0\u202f%  [25.0\u202f% to 100.0\u202f%]" in svg and "40 tasks" in svg


def test_bars_are_as_long_as_their_values() -> None:
    svg = bars([("a", 10.0, 0), ("b", 30.0, 1)], "seconds", duration)
    short, long = (float(marks(svg, "rect", color)[0]["width"] or 0) for color in (0, 1))
    assert long / short == pytest.approx(3, abs=0.02)
    assert "75.0\u202f% of all" in svg


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "–"), (0, "0"), (3, "3"), (-2.5, "−2.5"), (0.01234, "0.0123"), (1234.5, "1234"),
        (45678, "45.7k"), (9_412_553, "9.41M"), (1.2e-6, "1.2×10⁻⁶"), (999_999, "1M"), (1e-3, "0.001"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_shares_points_and_times_have_their_units() -> None:
    assert [percent(v) for v in (None, 0.0, 0.6834, 1.0, 0.00123)] == [
        "–", "0.0\u202f%", "68.3\u202f%", "100.0\u202f%", "0.12\u202f%",
    ]  # fmt: skip
    assert [points(v) for v in (None, 0.241, -0.05)] == ["–", "+24.1", "−5.0"]
    assert [duration(v) for v in (None, 0.0, 0.42, 12.4, 458.4, 7800.0)] == [
        "–", "0 s", "0.42 s", "12 s", "7 min 38 s", "2 h 10 min",
    ]  # fmt: skip
