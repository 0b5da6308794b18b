"""What all benchmarks share: arguments, a table, one line a bar, JSON, the exit status."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Bar:
    """A figure and what it must reach. `op` is "<=" or ">="."""

    name: str
    value: float
    op: str
    target: float

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.op == "<=" else self.value >= self.target

    def __str__(self) -> str:
        return f"bar {self.name}: {self.value:.4g} (target {self.op} {self.target:g}) {'ok' if self.met else 'short'}"


def arguments(doc: str) -> argparse.ArgumentParser:
    """A parser with the two options of every benchmark."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short form, under 50 seconds on two cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser


def finish(title: str, rows: Sequence[Mapping[str, object]], bars: Sequence[Bar], file: Path | None) -> int:
    """Print the table and the bars, write the JSON; the exit status is 1 when a bar is short."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=140).print(table)
    for bar in bars:
        print(bar)
    if file is not None:
        found = [vars(bar) | {"ok": bar.met} for bar in bars]
        file.write_text(json.dumps({"title": title, "rows": list(rows), "bars": found}, indent=1) + "\n")
    return 0 if all(bar.met for bar in bars) else 1
