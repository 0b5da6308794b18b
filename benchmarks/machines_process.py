"""Machines of the process backend: how long one takes and how many a second, beside one bubblewrap and Python a run.

    python benchmarks/machines_process.py [--quick] [--json FILE]

Prints a table and one line a bar, `bar NAME: VALUE (target OP TARGET) ok|short`; exit status 1 when a bar is short.
A full cycle is open + exec of `print(1)` + close.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from bars import Bar, arguments, finish

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
    args = arguments(__doc__).parse_args()
    found = asyncio.run(measure(args.quick))
    rows: list[dict[str, object]] = [
        {"": f"{what}, {unit}", "machines": found[ours], "bubblewrap + Python each time": found.get(theirs, "")}
        for what, unit, ours, theirs in (
            ("open, p50", "ms", "open_p50_ms", ""),
            ("exec, p50", "ms", "exec_p50_ms", ""),
            ("close, p50", "ms", "close_p50_ms", ""),
            ("full cycle, p50", "ms", "cycle_p50_ms", "plain_p50_ms"),
            ("full cycle, p95", "ms", "cycle_p95_ms", ""),
            (f"full cycles, {IN_FLIGHT} in flight", "1/s", "cycles_per_s", "plain_per_s"),
            ("exec in the same machine, p50", "ms", "exec_again_p50_ms", ""),
            (f"open {found['machines_held']:.0f} at once", "s", "open_all_s", ""),
            ("start of the fleet", "ms", "start_ms", ""),
        )
    ]
    bars = [
        Bar("cycle_p50_ms", found["cycle_p50_ms"], "<=", 12.0),
        Bar("cycles_per_s", found["cycles_per_s"], ">=", 150.0),
    ]
    return finish(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", rows, bars, args.json)


if __name__ == "__main__":
    sys.exit(main())
