"""What an agent is asked to do. Immutable; named by its content."""

from typing import Any

import blake3
import msgspec


class Task(msgspec.Struct, frozen=True):
    """One task. `task_id` is derived from all other fields, so equal ids mean equal tasks.

    family: which task source made it, e.g. "katas".
    tier:   difficulty, 1 is the easiest.
    prompt: what the agent reads.
    files:  path -> text, put into the machine before the agent starts.
    tests:  path -> text, put into a *fresh* machine for grading; the agent's machine never holds them.
    command: argv that grades; exit status 0 means solved.
    """

    task_id: str
    family: str
    tier: int
    prompt: str
    files: dict[str, str]
    tests: dict[str, str]
    command: tuple[str, ...]
    meta: dict[str, str] = {}

    @staticmethod
    def make(**fields: Any) -> "Task":
        """Build a task and give it its content id."""
        unnamed = Task(task_id="", **fields)
        name = blake3.blake3(msgspec.msgpack.encode(unnamed, order="deterministic")).hexdigest()[:16]
        return msgspec.structs.replace(unnamed, task_id=f"{unnamed.family}-{name}")
