"""A group grades equal files once, and a verdict is about files alone."""

import asyncio
from collections.abc import Mapping

from etude.agent import Grades
from etude.records import InfraError, Outcome
from etude.tasks import Verdict
from tests.agent.doubles import Fleet, katas
from tests.tasks.fakes import FolderFleet

KATA = katas()[0]
RIGHT, WRONG = {"kata.py": KATA.solution}, {"kata.py": "def f(*args):\n    return None\n"}


class SlowFleet(FolderFleet):
    """Lets others ask while a machine is opened."""

    async def open(self, files: Mapping[str, str]) -> object:
        await asyncio.sleep(0.01)
        return await super().open(dict(files))


def verdicts(fleet: object, *changed: Mapping[str, str]) -> list[Verdict]:
    async def ask() -> list[Verdict]:
        grades = Grades(KATA.task(), fleet)
        return await asyncio.gather(*(grades.of(files) for files in changed))

    return asyncio.run(ask())


def test_equal_files_are_graded_once_and_others_apart() -> None:
    fleet = SlowFleet()
    outcomes = [verdict.outcome for verdict in verdicts(fleet, RIGHT, WRONG, RIGHT, WRONG, RIGHT)]
    assert outcomes == [Outcome.SOLVED, Outcome.FAILED, Outcome.SOLVED, Outcome.FAILED, Outcome.SOLVED]
    assert len(fleet.opened) == 2 and all(machine.closed for machine in fleet.opened)


def test_untouched_files_are_failed_without_a_machine() -> None:
    fleet = Fleet()
    (verdict,) = verdicts(fleet, {"kata.py": KATA.source})
    assert verdict.outcome is Outcome.FAILED
    assert fleet.machines == []


def test_infrastructure_trouble_is_told_to_all_who_asked() -> None:
    fleet = Fleet(errors={("open", 0): InfraError("no machine")})
    assert [verdict.outcome for verdict in verdicts(fleet, RIGHT, RIGHT)] == [Outcome.INFRA_FAULT] * 2


def test_one_who_gives_up_does_not_take_the_verdict_from_the_others() -> None:
    async def ask() -> Verdict:
        grades = Grades(KATA.task(), SlowFleet())
        first, second = (asyncio.create_task(grades.of(RIGHT)) for _ in range(2))
        await asyncio.sleep(0.001)
        first.cancel()
        return await second

    assert asyncio.run(ask()).outcome is Outcome.SOLVED
