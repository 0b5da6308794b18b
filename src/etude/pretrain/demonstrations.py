"""Demonstrations of katas for the supervised phase, written by the real harness over a scripted policy.

Invariant: the rows depend on the configuration alone; training katas are demonstrated, held-out ones only measured.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Self

from etude.agent import Agent, Template, ToolCall
from etude.agent.scripted import ScriptedEngine
from etude.config.agent import AgentConfig
from etude.config.tasks import DemonstratorConfig, KatasConfig
from etude.corpus import Tokenizer
from etude.machines import ExecResult, ExecStatus
from etude.records import Segment
from etude.tasks.katas import Kata, KataSource, Split, demonstrate


class TrustedMachine:
    """Runs a kata's own examples in this very process, where a sandbox would cost milliseconds: for generated code
    only.
    A test compares it with the real one."""

    def __init__(self, kata: Kata, files: Mapping[str, str]) -> None:
        self.kata, self.files = kata, dict(files)

    async def read(self, path: str) -> str:
        """A file's text."""
        return self.files[path]

    async def write(self, path: str, text: str) -> None:
        """Replace a file."""
        self.files[path] = text

    async def exec(self, argv: Sequence[str], timeout_s: float | None = None) -> ExecResult:
        """What the examples print."""
        output = self.kata.examples_output(self.files["kata.py"])
        return ExecResult(ExecStatus.OK if output == "ok\n" else ExecStatus.ERROR, 0, output)

    async def close(self) -> None:
        """Nothing to end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None: ...


class TrustedFleet:
    """Opens trusted machines of one kata."""

    def __init__(self, kata: Kata) -> None:
        self.kata = kata

    async def open(self, files: Mapping[str, str]) -> TrustedMachine:
        """A machine holding `files`."""
        return TrustedMachine(self.kata, files)

    async def close(self) -> None:
        """Nothing to end."""


def write_demonstrations(
    tokenizer: Tokenizer, katas: KatasConfig, skill: DemonstratorConfig, agent: AgentConfig, split: Split, count: int
) -> list[Segment]:
    """Segments of `count` demonstrations, in order."""
    source, template = KataSource(katas, split), Template(tokenizer)
    rng = random.Random(f"{katas.seed}/{split.value}")

    async def all_of_them() -> list[Segment]:
        segments: list[Segment] = []
        for index in range(count):
            kata = source.kata(index)
            calls = [ToolCall(move.tool, move.args) for move in demonstrate(kata, rng, skill)]
            engine, fleet = ScriptedEngine(template, calls), TrustedFleet(kata)
            segments += await Agent(engine, fleet, template, agent, 1.0).work(kata.task(), f"demo-{index}")
        return segments

    return asyncio.run(all_of_them())
