"""Three kinds of charts as inline SVG: lines over steps, dots with intervals, bars.

Invariant: a gap in the data is a gap in the line; a lone value between gaps is a dot. Colours are classes (c0, c1, ..):
the page's style decides them for light and dark. What the pointer shows is drawn already and hidden by CSS; its words
are in `data-t`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from etude.evaluate.stats import Interval
from etude.report.markup import Markup, join, tag
from etude.report.numbers import number, percent
from etude.report.scale import Scale, linear, logarithmic

WIDTH, HEIGHT = 440.0, 216.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 24.0, 34.0
POINTS = 100  # drawn points a line; a page of 25 charts stays below a megabyte

Values = Sequence[float | None]


class Line(NamedTuple):
    """One series. sparse: measured now and then, dots on a thin line. peaks: pooled by maximum, not mean.

    broad: a wide pale line, for a series that may coincide with another.
    """

    name: str
    color: int
    values: Values
    sparse: bool = False
    peaks: bool = False
    broad: bool = False


class Row(NamedTuple):
    """One row of a dot-and-interval chart: a label and (colour, interval, name) for each dot."""

    label: str
    dots: Sequence[tuple[int, Interval, str]]


def lines(
    x: Sequence[float],
    series: Sequence[Line],
    x_label: str,
    y_label: str,
    log: bool = False,
    from_zero: bool = False,
    write: Callable[[float | None], str] = number,
) -> Markup:
    """Series over `x`, each as long as `x`. `write` formats values in tooltips and, if `percent`, on the axis."""
    for line in series:
        if len(line.values) != len(x):
            raise ValueError(f"chart: {len(x)} places but {line.name} has {len(line.values)} values")
    groups = _pools(len(x))
    pooled_x = [x[group[-1]] for group in groups]
    pooled = [[_pool([line.values[i] for i in group], line.peaks) for group in groups] for line in series]
    values = [value for column in pooled for value in column]
    scale = logarithmic(values) if log else linear(values, from_zero, shares=write is percent)
    across = linear(x) if len(x) > 1 else linear([x[0] - 1, x[0] + 1])
    across = across._replace(ticks=tuple(t for t in across.ticks if "." not in t.label))
    low, high = (x[0], x[-1]) if len(x) > 1 else (x[0] - 1, x[0] + 1)

    def px(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def py(value: float | None) -> float | None:
        place = scale.place(value)
        return None if place is None else HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)

    xs = [px(value) for value in pooled_x]
    drawn = [_line(line, xs, [py(value) for value in column]) for line, column in zip(series, pooled, strict=True)]
    marks = [(px(across.low + t.place * (across.high - across.low)), t.label) for t in across.ticks]
    frame = _frame(scale, [mark for mark in marks if LEFT - 0.5 <= mark[0] <= WIDTH - RIGHT + 0.5], x_label, y_label)
    hover = [
        _hover(index, xs, f"{x_label} {_span(x, groups[index])}", [
            (line, column[index], py(column[index]), write) for line, column in zip(series, pooled, strict=True)
        ])
        for index in range(len(groups))
    ]  # fmt: skip
    return _svg(HEIGHT, f"{y_label} over {x_label}", frame, drawn, hover)


def intervals(rows: Sequence[Row], x_label: str, gutter: float = 96.0, pitch: float = 19.0) -> Markup:
    """Shares with their 95 % intervals, one line of height `pitch` a dot, rows grouped under their label."""
    scale = linear([0.0, 1.0], from_zero=True, shares=True)
    gap = 10.0
    height = 12.0 + sum(pitch * len(row.dots) + gap for row in rows) + BOTTOM
    end = WIDTH - 58.0
    parts = [_across(gutter + t.place * (end - gutter), 8.0, height - BOTTOM, t.label) for t in scale.ticks]

    def px(value: float) -> float:
        return gutter + (scale.place(value) or 0.0) * (end - gutter)

    y = 12.0
    for row in rows:
        parts.append(_text(0.0, y + pitch * len(row.dots) / 2 + 4, _short(row.label, gutter), "label"))
        for color, interval, name in row.dots:
            y += pitch
            middle = y - pitch / 2
            words = f"{name}\n{percent(interval.mean)}  [{percent(interval.low)} to {percent(interval.high)}]\n"
            words += f"{interval.n} tasks, 95 % interval"
            path = f"M{px(interval.low):.1f} {middle:.1f}H{px(interval.high):.1f}"
            parts += [
                tag("path", d=path, class_=f"whisker s{color}"),
                tag("circle", cx=px(interval.mean), cy=middle, r=5, class_=f"c{color}"),
                _text(WIDTH, middle + 4, percent(interval.mean), "value end"),
                tag("rect", x=0, y=y - pitch, width=WIDTH, height=pitch, class_="hit", data_t=words),
            ]
        y += gap
    parts.append(_text(gutter + (end - gutter) / 2, height - 4, x_label, "axis mid"))
    return _svg(height, x_label, parts)


def bars(rows: Sequence[tuple[str, float, int]], x_label: str, write: Callable[[float | None], str]) -> Markup:
    """Horizontal bars from zero: (label, value, colour)."""
    scale = linear([0.0, *(value for _, value, _ in rows)], from_zero=True)
    gutter, end, pitch = 110.0, WIDTH - 70.0, 24.0
    height = 14.0 + pitch * len(rows) + BOTTOM
    total = sum(value for _, value, _ in rows)
    parts = [_across(gutter + t.place * (end - gutter), 8.0, height - BOTTOM, t.label) for t in scale.ticks]
    for index, (label, value, color) in enumerate(rows):
        y = 12.0 + pitch * index
        width = max(1.0, (scale.place(value) or 0.0) * (end - gutter))
        share = f"{label}\n{write(value)}" + (f", {percent(value / total)} of all" if total else "")
        parts += [
            tag("rect", x=gutter, y=y + 4, width=width, height=pitch - 9, rx=2, class_=f"c{color}"),
            _text(gutter - 8, y + pitch / 2 + 4, _short(label, gutter), "label end"),
            _text(gutter + width + 6, y + pitch / 2 + 4, write(value), "value"),
            tag("rect", x=0, y=y, width=WIDTH, height=pitch, class_="hit", data_t=share),
        ]
    parts.append(_text(gutter + (end - gutter) / 2, height - 4, x_label, "axis mid"))
    return _svg(height, x_label, parts)


def _svg(height: float, words: str, *parts: object) -> Markup:
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label=words)


def _text(x: float, y: float, words: str, kind: str) -> Markup:
    return tag("text", words, x=x, y=y, class_=kind)


def _short(label: str, room: float) -> str:
    """The label, cut to what `room` units hold at the size that a phone shows (about 6.6 a letter)."""
    fits = int(room / 6.6)
    return label if len(label) <= fits else label[: fits - 1] + "…"


def _across(x: float, top: float, bottom: float, label: str) -> Markup:
    """A vertical grid line with its label below."""
    return join(
        tag("path", d=f"M{x:.1f} {top:.1f}V{bottom:.1f}", class_="grid"), _text(x, bottom + 15, label, "tick mid")
    )


def _frame(scale: Scale, marks: Sequence[tuple[float, str]], x_label: str, y_label: str) -> Markup:
    parts = [_text(0.0, 10.0, y_label, "axis")]
    for tick in scale.ticks:
        y = HEIGHT - BOTTOM - tick.place * (HEIGHT - TOP - BOTTOM)
        parts.append(tag("path", d=f"M{LEFT:.0f} {y:.1f}H{WIDTH - RIGHT:.0f}", class_="grid"))
        parts.append(_text(LEFT - 7, y + 3.5, tick.label, "tick end"))
    parts += [_text(x, HEIGHT - BOTTOM + 15, label, "tick mid") for x, label in marks]
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 4, x_label, "axis end"))
    return join(parts)


def _line(line: Line, xs: Sequence[float], ys: Values) -> Markup:
    """Runs of known values as paths, lone values as dots; a sparse line is dots on a hairline across its gaps."""
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
    if line.sparse:
        hairline = tag("path", d=_path(known), class_=f"hair s{line.color}") if len(known) > 1 else None
        return join(hairline, [tag("circle", cx=x, cy=y, r=2.6, class_=f"c{line.color}") for x, y in known])
    kind = "line broad" if line.broad else "line"
    parts: list[Markup] = []
    run: list[tuple[float, float]] = []
    for x, y in [*zip(xs, ys, strict=True), (0.0, None)]:
        if y is not None:
            run.append((x, y))
        elif run:
            lone = tag("circle", cx=run[0][0], cy=run[0][1], r=2.2, class_=f"c{line.color}")
            parts.append(lone if len(run) == 1 else tag("path", d=_path(run), class_=f"{kind} s{line.color}"))
            run = []
    return join(parts)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _hover(
    index: int,
    xs: Sequence[float],
    where: str,
    points: Sequence[tuple[Line, float | None, float | None, Callable[[float | None], str]]],
) -> Markup | None:
    if all(value is None for _, value, _, _ in points):
        return None
    left = (xs[index - 1] + xs[index]) / 2 if index else LEFT - 6
    right = (xs[index] + xs[index + 1]) / 2 if index + 1 < len(xs) else WIDTH
    words = "\n".join([where, *(f"{line.name}: {write(value)}" for line, value, _, write in points)])
    return tag(
        "g",
        tag("rect", x=left, y=TOP, width=right - left, height=HEIGHT - TOP - BOTTOM, class_="hit"),
        tag("path", d=f"M{xs[index]:.1f} {TOP:.0f}V{HEIGHT - BOTTOM:.0f}"),
        [
            tag("circle", cx=xs[index], cy=y, r=3.5, class_=f"c{line.color}")
            for line, _, y, _ in points
            if y is not None
        ],
        class_="h",
        data_t=words,
    )


def _pools(count: int) -> list[range]:
    """Neighbouring rows that share a drawn point."""
    size = -(-count // POINTS)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _pool(values: Values, peaks: bool) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if peaks else sum(known) / len(known)


def _span(x: Sequence[float], group: range) -> str:
    first, last = f"{x[group[0]]:g}", f"{x[group[-1]]:g}"
    return first if first == last else f"{first} to {last}"
