"""What the agent can do in its machine. Every tool answers with text; none raises for what the agent did wrong."""

from dataclasses import dataclass

from etude.agent.template import ToolCall
from etude.machines import ExecStatus, Machine, WorkspaceError
from etude.records import Task
from etude.tasks import EditError, apply_edit


@dataclass(frozen=True)
class Answer:
    """A tool's answer. `error`: the call did not do what it said."""

    text: str
    error: bool = False


class Toolbox:
    """The tools of one rollout over one machine. Counts what it did for the metrics.

    The file to work on is `task.meta["file"]`, the program that `run` starts `task.meta["run"]`, both in the workspace.
    """

    def __init__(self, task: Task, machine: Machine, run_timeout_s: float) -> None:
        self.machine = machine
        self.file = task.meta["file"]
        self.program = task.meta["run"]
        self.run_timeout_s = run_timeout_s

    async def use(self, call: ToolCall) -> Answer:
        """Carry out a call (any but `finish`, which ends the loop)."""
        try:
            if call.tool == "view":
                return Answer(_numbered(await self.machine.read(self.file)))
            if call.tool == "edit":
                return await self._edit(*call.args)
            return await self._run()
        except WorkspaceError as error:
            return Answer(str(error), error=True)

    async def _edit(self, line: str, old: str, new: str) -> Answer:
        if not line.strip().isdecimal():
            return Answer("bad line", error=True)
        try:
            edited = apply_edit(await self.machine.read(self.file), int(line), old, new)
        except EditError as error:
            return Answer(str(error), error=True)
        await self.machine.write(self.file, edited)
        return Answer("ok")

    async def _run(self) -> Answer:
        result = await self.machine.exec(("python", self.program), timeout_s=self.run_timeout_s)
        if result.status in (ExecStatus.TIMEOUT, ExecStatus.LIMIT):
            return Answer(f"stopped: {result.status.value}", error=True)
        return Answer(result.output.strip() or "no output")


def _numbered(text: str) -> str:
    return "\n".join(f"{number} {line}" for number, line in enumerate(text.splitlines(), 1))
