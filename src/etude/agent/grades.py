"""Verdicts on what the rollouts of one group left behind.

Invariant: a verdict is about files, and equal files get the same one: a task's grader must be deterministic, so a group
in which several rollouts end with equal files is graded once for all of them. Files that nobody changed are not graded:
a task whose untouched files pass is no task.
"""

import asyncio
from collections.abc import Mapping

from etude.machines import Fleet
from etude.records import Outcome, Task
from etude.tasks import Verdict, grade


class Grades:
    """Grades one task; shared by the rollouts of a group, in one asyncio loop."""

    def __init__(self, task: Task, fleet: Fleet) -> None:
        self.task, self.fleet = task, fleet
        self._verdicts: dict[tuple[tuple[str, str], ...], asyncio.Task[Verdict]] = {}

    async def of(self, changed: Mapping[str, str]) -> Verdict:
        """The verdict on the task's files with `changed` (path -> text) in their place."""
        files = self.task.files | dict(changed)
        if files == self.task.files:
            return Verdict(Outcome.FAILED, "nothing was changed", 0.0)
        key = tuple(sorted(files.items()))
        if key not in self._verdicts:
            self._verdicts[key] = asyncio.create_task(grade(self.task, files, self.fleet))
        return await asyncio.shield(self._verdicts[key])
