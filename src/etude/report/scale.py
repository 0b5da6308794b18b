"""From values to places on a chart: linear and logarithmic axes with round ticks.

Invariant: a missing value has no place (None), and on a logarithmic axis zero has its own place below the last decade,
never the place of a small number.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from etude.report.numbers import decade, number, percent


class Tick(NamedTuple):
    """A mark at `place` (0 to 1 along the axis) and its label."""

    place: float
    label: str


class Scale(NamedTuple):
    """An axis from `low` to `high`; a logarithmic one holds exponents of ten. `zero`: a place below `low` is kept."""

    low: float
    high: float
    log: bool
    zero: bool
    ticks: tuple[Tick, ...]

    def place(self, value: float | None) -> float | None:
        """0 at the start of the axis, 1 at its end; None for what cannot be drawn."""
        if value is None or not math.isfinite(value):
            return None
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        if value <= 0:
            return 0.0 if value == 0 and self.zero else None
        return _above_zero((math.log10(value) - self.low) / (self.high - self.low), self.zero)


def linear(values: Iterable[float | None], from_zero: bool = False, shares: bool = False) -> Scale:
    """A linear axis around the values with about four round ticks; `shares` writes them as percentages."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-12 * max(abs(high), abs(low), 1e-300):
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    step = _round_step((high - low) / 4)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    marks = [low + step * index for index in range(round((high - low) / step) + 1)]
    write = _percent_tick if shares else number
    ticks = tuple(Tick((mark - low) / (high - low), write(0.0 if abs(mark) < step / 1e6 else mark)) for mark in marks)
    return Scale(low, high, False, False, ticks)


def logarithmic(values: Iterable[float | None]) -> Scale:
    """A base-ten axis over the positive values; zero gets a tick of its own when it occurs."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    positive = [value for value in known if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    high = max(high, low + 1)
    zero = 0 in known
    stride = max(1, math.ceil((high - low) / 5))
    ticks = [
        Tick(_above_zero((exponent - low) / (high - low), zero), decade(exponent))
        for exponent in range(low, high + 1, stride)
    ]
    return Scale(low, high, True, zero, tuple(([Tick(0.0, "0")] if zero else []) + ticks))


def _above_zero(place: float, zero: bool) -> float:
    return 0.12 + 0.88 * place if zero else place


def _percent_tick(value: float) -> str:
    return percent(value).replace(".0 %", " %")


def _round_step(rough: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999)
