"""A run's numbers as JSON lines.

Invariant: a line is whole or ignored, and a step is written once: reopening a log to resume from step S drops the
lines of steps >= S that a killed process left behind.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

from etude.records.atomic import disk_errors, write_atomic


class MetricsLog:
    """Appends one flat dict a step to `path`. `resume_from`: keep only lines with `step` below it (None keeps none)."""

    def __init__(self, path: str | Path, resume_from: int | None = None) -> None:
        self.path = Path(path)
        kept = [row for row in read_metrics(self.path) if resume_from is not None and row["step"] < resume_from]
        write_atomic(self.path, "".join(_line(row) for row in kept))

    def write(self, step: int, **values: Any) -> None:
        """Append the values of `step`, with the wall clock in `time` (seconds since the epoch)."""
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(_line({"step": step, "time": time.time(), **values}))


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """All whole lines of a log, oldest first; an empty list when there is no log yet."""
    path = Path(path)
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # the torn last line of a killed process
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _line(row: dict[str, Any]) -> str:
    return json.dumps(_plain(row), separators=(",", ":"), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """What JSON can say: numpy scalars become numbers, and a number that is missing (NaN, infinite) is null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar, without importing numpy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
