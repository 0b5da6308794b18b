"""Judging what an agent left behind, in a machine that the agent never touched.

Invariants:
* the tests are written only into a fresh machine, after the agent's files, over any of the same name;
* SOLVED needs exit status 0 and, where the tests hold `PASSPHRASE`, a line with the secret drawn for this very
  grading: a program that leaves early has no way to print it;
* trouble with the infrastructure is INFRA_FAULT and has no reward; what the agent's code did counts against the agent.
"""

import secrets
import time
from dataclasses import dataclass

from etude.machines import ExecResult, ExecStatus, Fleet, WorkspaceError
from etude.records import InfraError, Outcome, Task, UserError

PASSPHRASE = "@PASSPHRASE@"
"""Stands in a test file for the secret line that an honest pass prints."""


@dataclass(frozen=True)
class Verdict:
    """How a grading ended. `detail` is one line for people, never for the agent; `seconds` is wall time."""

    outcome: Outcome
    detail: str
    seconds: float


async def grade(task: Task, files: dict[str, str], fleet: Fleet, timeout_s: float = 10.0) -> Verdict:
    """Run `task.command` in a fresh machine over the agent's final `files` (path -> text) and the task's tests.

    Infrastructure trouble is an INFRA_FAULT verdict, never an exception.
    """
    started = time.perf_counter()
    try:
        outcome, detail = await _grade(task, files, fleet, timeout_s)
    except InfraError as error:
        outcome, detail = Outcome.INFRA_FAULT, str(error)
    return Verdict(outcome, detail, time.perf_counter() - started)


async def _grade(task: Task, files: dict[str, str], fleet: Fleet, timeout_s: float) -> tuple[Outcome, str]:
    missing = sorted(set(task.files) - set(files))
    if missing:
        return Outcome.AGENT_FAULT, f"missing: {', '.join(missing)}"
    secret = secrets.token_hex(16)
    try:
        machine = await fleet.open(files)
    except UserError as error:  # too large, or not a text that a file can hold
        return Outcome.AGENT_FAULT, str(error)
    try:
        for path, text in task.tests.items():
            await machine.write(path, text.replace(PASSPHRASE, secret))
        result = await machine.exec(task.command, timeout_s=timeout_s)
    except WorkspaceError as error:  # the agent's files leave no room for the tests
        return Outcome.AGENT_FAULT, str(error)
    finally:
        await machine.close()
    wanted = secret if any(PASSPHRASE in text for text in task.tests.values()) else None
    return _judge(result, wanted)


def _judge(result: ExecResult, secret: str | None) -> tuple[Outcome, str]:
    if result.status in (ExecStatus.TIMEOUT, ExecStatus.LIMIT):
        return Outcome.AGENT_FAULT, f"tests stopped: {result.detail or result.status.value}"
    lines = result.output.strip().splitlines()
    if result.code == 0 and (secret is None or secret in lines):
        return Outcome.SOLVED, "tests passed"
    if result.code == 0:
        return Outcome.FAILED, "tests ended early, without the passphrase"
    return Outcome.FAILED, lines[-1] if lines else f"tests exited with {result.code}"
