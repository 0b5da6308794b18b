"""Machines of the process backend: how long one takes and how many a second, beside one bubblewrap and Python a run.

    python benchmarks/machines_process.py [--quick] [--json FILE]

Prints a table and one line a bar, `bar NAME: VALUE (target OP TARGET) ok|short`; exit status 1 when a bar is short.
A full cycle is open + exec of `print(1)` + close.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from etude.config.machines import MachinesConfig
from etude.machines import ProcessFleet
from etude.machines.process import root

FILES = {"a.py": "print(1)\n"}
IN_FLIGHT = 16


async def cycle(fleet: ProcessFleet) -> tuple[float, float, float]:
    """Seconds of open, exec and close."""
    marks = [time.perf_counter()]
    machine = await fleet.open(FILES)
    marks.append(time.perf_counter())
    result = await machine.exec(("python", "a.py"))
    marks.append(time.perf_counter())
    await machine.close()
    marks.append(time.perf_counter())
    assert result.output == "1\n", result
    return marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]


async def rate(count: int, work: Callable[[], Awaitable[object]]) -> float:
    """Calls of `work` a second with IN_FLIGHT of them at once."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one() -> None:
        async with slots:
            await work()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return count / (time.perf_counter() - started)


def plain_command() -> list[str]:
    """What a machine would be without a zygote: all namespaces, the interpreter read-only, a fresh Python."""
    words = [str(root.bwrap_path()), "--unshare-all", "--die-with-parent", "--proc", "/proc", "--tmpfs", "/home"]
    for folder in dict.fromkeys(("/usr", "/lib", "/lib64", "/bin", sys.base_prefix)):
        if os.path.exists(folder):
            words += ["--ro-bind", folder, folder]
    return [*words, "--", os.path.realpath(sys.executable), "-c", "print(1)"]


async def plain_run() -> None:
    process = await asyncio.create_subprocess_exec(*plain_command(), stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output == b"1\n", output


def plain_seconds() -> float:
    started = time.perf_counter()
    subprocess.run(plain_command(), stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - started


async def measure(quick: bool) -> dict[str, float]:
    alone, together, held = (100, 400, 64) if quick else (400, 3000, 256)
    found: dict[str, float] = {}
    started = time.perf_counter()
    async with ProcessFleet(MachinesConfig(max_open=256)) as fleet:
        found["start_ms"] = 1e3 * (time.perf_counter() - started)
        for _ in range(10):
            await cycle(fleet)
        parts = [await cycle(fleet) for _ in range(alone)]
        for name, values in zip(("open", "exec", "close"), zip(*parts, strict=True), strict=True):
            found[f"{name}_p50_ms"] = 1e3 * statistics.median(values)
        totals = sorted(map(sum, parts))
        found["cycle_p50_ms"] = 1e3 * statistics.median(totals)
        found["cycle_p95_ms"] = 1e3 * totals[int(0.95 * len(totals))]
        found["cycles_per_s"] = await rate(together, lambda: cycle(fleet))
        machine = await fleet.open(FILES)
        again = [(await machine.exec(("python", "a.py"))).seconds for _ in range(alone)]
        await machine.close()
        found["exec_again_p50_ms"] = 1e3 * statistics.median(again)
        started = time.perf_counter()
        machines = await asyncio.gather(*(fleet.open(FILES) for _ in range(held)))
        found["machines_held"] = held
        found["open_all_s"] = time.perf_counter() - started
        await asyncio.gather(*(machine.close() for machine in machines))
    plain = [plain_seconds() for _ in range(alone // 4)]
    found["plain_p50_ms"] = 1e3 * statistics.median(plain)
    found["plain_per_s"] = await rate(together // 4, plain_run)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 30 seconds")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.quick))
    table = Table(
        "", "machines", "bubblewrap + Python each time", title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    table.add_row(
        "open / exec / close, p50 ms", " / ".join(f"{found[f'{n}_p50_ms']:.1f}" for n in ("open", "exec", "close"))
    )
    table.add_row(
        "full cycle, p50 ms (p95)",
        f"{found['cycle_p50_ms']:.1f} ({found['cycle_p95_ms']:.1f})",
        f"{found['plain_p50_ms']:.1f}",
    )
    table.add_row(
        f"full cycles a second, {IN_FLIGHT} in flight", f"{found['cycles_per_s']:.0f}", f"{found['plain_per_s']:.0f}"
    )
    table.add_row("exec in the same machine, p50 ms", f"{found['exec_again_p50_ms']:.1f}")
    table.add_row(f"open {found['machines_held']} at once, s", f"{found['open_all_s']:.2f}")
    table.add_row("start of the fleet, ms", f"{found['start_ms']:.0f}")
    Console(width=110).print(table)
    bars = [("cycle_p50_ms", "<=", 12.0), ("cycles_per_s", ">=", 150.0)]
    met = {name: found[name] <= target if op == "<=" else found[name] >= target for name, op, target in bars}
    for name, op, target in bars:
        print(f"bar {name}: {found[name]:.1f} (target {op} {target:g}) {'ok' if met[name] else 'short'}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"figures": found, "bars": met}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
