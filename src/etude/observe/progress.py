"""Progress bars for people: what is happening and how long it will take."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(stderr=True)


class Update(Protocol):
    """Says how far the work is: `done` out of the bar's total, and a few words on how it goes."""

    def __call__(self, done: float, note: str = "") -> None: ...


@contextlib.contextmanager
def progress(what: str, total: float) -> Iterator[Update]:
    """A bar on stderr; yields `update(done, note)` with `done` out of `total` and a few words on how it goes.

    Without a terminal (a log file, CI) one plain line is printed at the end instead of a bar.
    """
    if not console.is_terminal:
        last = ""

        def remember(done: float, note: str = "") -> None:
            nonlocal last
            last = note

        yield remember
        console.print(f"{what}: {last}", highlight=False, markup=False)
        return
    columns = (
        SpinnerColumn(), TextColumn("[bold]{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), TextColumn("[dim]{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(escape(what), total=total, note="")

        def update(done: float, note: str = "") -> None:
            bar.update(task, completed=done, note=escape(note))

        yield update
