"""A lazy machine is the machine that it puts off making."""

import asyncio

import pytest

from etude.config.machines import MachinesConfig
from etude.machines import ExecStatus, LazyMachine, ProcessFleet, WorkspaceError
from etude.records import UserError

FILES = {"kata.py": "x = 1\n", "show.py": "import kata; print(kata.x)\n"}


class CountingFleet:
    """Opens machines of a real fleet and counts them."""

    def __init__(self, fleet: ProcessFleet) -> None:
        self.fleet, self.opened = fleet, 0

    async def open(self, files):
        self.opened += 1
        return await self.fleet.open(files)

    async def close(self) -> None: ...


async def session(machine) -> list[object]:
    """What a user of a machine sees."""
    seen: list[object] = [await machine.read("kata.py")]
    await machine.write("kata.py", "x = 2\n")
    seen.append(await machine.read("kata.py"))
    for path in ("nothing.py", "../etc/passwd"):
        with pytest.raises(UserError) as refused:
            await machine.read(path)
        seen.append(isinstance(refused.value, WorkspaceError))
    result = await machine.exec(("python", "show.py"))
    seen += [result.status, result.output]
    await machine.write("kata.py", "x = 3\n")
    seen += [await machine.read("kata.py"), (await machine.exec(("python", "show.py"))).output]
    return seen


def test_a_lazy_machine_answers_as_one_that_was_opened_at_once():
    async def both():
        async with ProcessFleet(MachinesConfig()) as fleet:
            eager = await fleet.open(FILES)
            return await session(LazyMachine(fleet, FILES)), await session(eager)

    lazy, eager = asyncio.run(both())
    assert lazy == eager
    assert lazy[-4:] == [ExecStatus.OK, "2\n", "x = 3\n", "3\n"]


def test_an_agent_that_only_edits_costs_no_machine():
    async def edits():
        async with ProcessFleet(MachinesConfig()) as real:
            fleet = CountingFleet(real)
            async with LazyMachine(fleet, FILES) as machine:
                await machine.write("kata.py", "x = 2\n")
                assert await machine.read("kata.py") == "x = 2\n"
                before = fleet.opened
                await machine.exec(("python", "show.py"))
            return before, fleet.opened

    assert asyncio.run(edits()) == (0, 1)
