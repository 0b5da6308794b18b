"""Programs that want too much: each ends, is told apart from a wrong one, and its neighbours do not notice."""

import asyncio
import time
import tracemalloc

import pytest

from etude.config.machines import MachinesConfig
from etude.machines import ExecResult, ExecStatus, ProcessFleet

from .conftest import LIMITS, Lab


@pytest.mark.parametrize(
    "source",
    ["while True: pass\n", "import time\ntime.sleep(60)\n",
     "import os\nif os.fork(): os.wait()\nelse:\n while 1: os.getpid()\n",
     "import signal\nfor n in (2, 15, 24): signal.signal(n, signal.SIG_IGN)\nprint('said')\nwhile True: pass\n"],
)  # fmt: skip
def test_a_program_that_does_not_end_times_out_on_time(lab: Lab, source: str) -> None:
    started = time.monotonic()
    result = lab.program(source, timeout_s=0.4)
    assert (result.status, result.code, result.detail) == (ExecStatus.TIMEOUT, None, "more than 0.4 s")
    assert 0.4 <= result.seconds <= time.monotonic() - started < 5.0
    assert result.output == ("said\n" if "said" in source else "")


def test_cpu_seconds_end_a_program_too() -> None:
    async def work() -> list[ExecResult]:
        async with ProcessFleet(MachinesConfig(cpu_s=1)) as fleet:
            sources = ("while True: pass", "import signal; signal.signal(24, signal.SIG_IGN)\nwhile True: pass")
            machines = [await fleet.open({"p.py": source}) for source in sources]
            return await asyncio.gather(*(machine.exec(("python", "p.py"), 60.0) for machine in machines))

    for result in asyncio.run(work()):
        assert (result.status, result.code, result.detail) == (ExecStatus.TIMEOUT, None, "more than 1 s of CPU")


@pytest.mark.parametrize(
    "source",
    [
        "x = bytearray(200 << 20)\n",
        "x = []\nwhile True: x.append(bytes(1 << 16))\n",
        # no process above the limit of one, all together above it
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0: break\nx = b'x' * (40 << 20)\ntime.sleep(10)\n",
        "import mmap, time\nm = mmap.mmap(-1, 120 << 20)\nfor i in range(0, len(m), 4096): m[i] = 1\ntime.sleep(10)\n",
    ],
    ids=["at once", "bit by bit", "together", "shared"],
)
def test_too_much_memory_is_a_limit(lab: Lab, source: str) -> None:
    result = lab.program(source)
    assert result.status is ExecStatus.LIMIT
    assert "memory" in result.detail and result.seconds < 9


@pytest.mark.parametrize(
    "source",
    ["import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n", "import os\nwhile True: os.fork()\n",
     "import threading\nfor _ in range(99): threading.Timer(30, print).start()\n"],
    ids=["stubborn", "naive", "threads"],
)  # fmt: skip
def test_too_many_processes_are_a_limit_and_neighbours_live(lab: Lab, source: str) -> None:
    async def work() -> tuple[ExecResult, ExecResult, ExecResult]:
        bomb, neighbour = await lab.fleet.open({"p.py": source}), await lab.fleet.open({})
        async with bomb, neighbour:
            running = asyncio.create_task(bomb.exec(("python", "p.py"), 20.0))
            beside = await neighbour.exec(("python", "-c", "import os\nif os.fork(): os.wait(); print('alive')"), 20.0)
            return await running, beside, await bomb.exec(("sh", "-c", "ls /proc | grep -c '^[0-9]'"), 20.0)

    exploded, beside, after = lab.run(work())
    assert exploded.status is ExecStatus.LIMIT and "processes" in exploded.detail
    assert (beside.status, beside.output) == (ExecStatus.OK, "alive\n")
    assert int(after.output) <= 4  # the machine's first process, sh, ls, grep: none of the bomb's


def test_as_many_processes_as_allowed_are_allowed(lab: Lab) -> None:
    count = LIMITS.processes - 1
    source = f"import os, time\nif all(os.fork() for _ in range({count})):\n    for _ in range({count}): os.wait()\n"
    source += "else: time.sleep(0.3)\n"
    assert lab.program(source).status is ExecStatus.OK


@pytest.mark.parametrize(
    "command",
    [("python", "-c", "f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 16))"),
     ("dd", "if=/dev/zero", "of=big", "bs=64k"),
     ("sh", "-c", "for d in /tmp /dev/shm .; do head -c 3000000 /dev/zero > $d/$$.x || exit 9; done"),
     ("sh", "-c", "i=0; while : > f$i; do i=$((i+1)); done; exit 1")],
    ids=["python", "dd", "everywhere", "many files"],
)  # fmt: skip
def test_a_full_disk_is_a_limit_and_stays_within_it(lab: Lab, command: tuple[str, ...]) -> None:
    async def work() -> tuple[ExecResult, str]:
        async with await lab.fleet.open({"small": "kept"}) as machine:
            result = await machine.exec(command, 20.0)
            used = await machine.exec(("du", "-sk", "/home"))
            assert int(used.output.split()[0]) <= LIMITS.workspace_mb << 10
            return result, await machine.read("small")

    result, kept = lab.run(work())
    assert result.status is ExecStatus.LIMIT and ("files" in result.detail or "disk" in result.detail)
    assert kept == "kept"


def test_a_flood_of_output_is_a_limit_and_fills_no_memory(lab: Lab) -> None:
    tracemalloc.start()
    result = lab.program("print('first')\nwhile True: print('x' * 10000)\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.status is ExecStatus.LIMIT and result.detail == "more than 1 MiB of output"
    assert (
        result.truncated
        and result.output.startswith("first\nxxx")
        and len(result.output) < (LIMITS.output_kb << 10) + 100
    )
    assert peak < 2 << 20


def test_long_output_keeps_its_beginning_and_its_end(lab: Lab) -> None:
    result = lab.program("for n in range(20000): print(n)\n")
    lines = result.output.splitlines()
    assert result.status is ExecStatus.OK and result.truncated
    assert lines[:2] == ["0", "1"] and lines[-1] == "19999"
    said = next(line for line in lines if "left out" in line)
    total = sum(len(f"{n}\n") for n in range(20000))
    assert said == f"[... {total - (LIMITS.output_kb << 10)} bytes left out ...]"


def test_output_of_exactly_the_limit_is_whole(lab: Lab) -> None:
    size = LIMITS.output_kb << 10
    result = lab.program(f"print('y' * {size - 1})\n")
    assert not result.truncated and result.output == "y" * (size - 1) + "\n"


def test_open_waits_while_too_many_machines_are_open() -> None:
    async def work() -> None:
        async with ProcessFleet(MachinesConfig(max_open=2)) as fleet:
            first, second = await fleet.open({}), await fleet.open({})
            third = asyncio.create_task(fleet.open({}))
            await asyncio.sleep(0.2)
            assert not third.done()
            await first.close()
            await (await third).close()
            await second.close()
            for _ in range(4):  # a refused opening gives its place back
                with pytest.raises(ValueError):
                    await fleet.open({"/": ""})
            async with await fleet.open({}), await fleet.open({}):
                pass

    asyncio.run(work())


def test_programs_wait_for_their_turn_and_their_time_does_not_run() -> None:
    async def work() -> list[ExecResult]:
        async with ProcessFleet(MachinesConfig(max_running=1)) as fleet:
            machines = [await fleet.open({}) for _ in range(4)]
            return await asyncio.gather(*(machine.exec(("sleep", "0.3"), 0.8) for machine in machines))

    started = time.monotonic()
    results = asyncio.run(work())
    assert time.monotonic() - started >= 4 * 0.3
    assert all(result.status is ExecStatus.OK and 0.3 <= result.seconds < 0.8 for result in results)
