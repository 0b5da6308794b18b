"""One fleet for all tests of this folder, and helpers to run a program in a machine of its own."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from etude.config.machines import MachinesConfig
from etude.machines import ExecResult, ProcessFleet

T = TypeVar("T")
LIMITS = MachinesConfig(memory_mb=96, processes=12, workspace_mb=4, output_kb=16, flood_mb=1, read_kb=64)


class Lab:
    """A started fleet and the loop it lives in."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.fleet = ProcessFleet(LIMITS)
        self.run(self.fleet.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def program(self, source: str, timeout_s: float = 20.0, **files: str) -> ExecResult:
        """Run `source` as python in a fresh machine. Other files: name -> text, `__` standing for a dot."""
        return self.command(("python", "p.py"), timeout_s, p__py=source, **files)

    def command(self, argv: Sequence[str], timeout_s: float = 20.0, **files: str) -> ExecResult:
        async def work() -> ExecResult:
            async with await self.fleet.open(
                {name.replace("__", "."): text for name, text in files.items()}
            ) as machine:
                return await machine.exec(argv, timeout_s)

        return self.run(work())


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with asyncio.Runner() as runner:
        made = Lab(runner)
        yield made
        made.run(made.fleet.close())


def descendants(pid: int) -> set[int]:
    """Processes below `pid`, itself included, found by walking /proc."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, queue = set(), [pid]
    while queue:
        found.add(queue[-1])
        queue += children.get(queue.pop(), [])
    return found


async def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `holds` becomes true within `seconds`."""
    for _ in range(int(seconds / 0.02)):
        if holds():
            return True
        await asyncio.sleep(0.02)
    return holds()
