"""Progress bars for people: what is happening and how long it will take."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(stderr=True)


@contextlib.contextmanager
def progress(what: str, total: float) -> Iterator[Callable[[float, str], None]]:
    """A bar on stderr; yields `update(done, note)` with `done` out of `total` and a few words on how it goes.

    Without a terminal (a log file, CI) one plain line is printed at the end instead of a bar.
    """
    if not console.is_terminal:
        state = {"note": ""}
        yield lambda done, note="": state.update(note=note)
        console.print(f"{what}: {state['note']}", highlight=False)
        return
    columns = (
        SpinnerColumn(), TextColumn("[bold]{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), TextColumn("[dim]{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
