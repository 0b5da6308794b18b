"""A demonstration written in the trusted machine has the tokens that the same calls have in a real sandbox."""

import asyncio
import random

import pytest

from etude.agent import Agent, Template, ToolCall
from etude.agent.scripted import ScriptedEngine
from etude.config.agent import AgentConfig
from etude.config.machines import MachinesConfig
from etude.config.tasks import DemonstratorConfig, KatasConfig
from etude.corpus import Tokenizer
from etude.machines import ProcessFleet
from etude.pretrain import write_demonstrations
from etude.records import Segment, encode
from etude.tasks.katas import KataSource, Split, demonstrate

KATAS = 20
SKILL = DemonstratorConfig(right=0.4, run=0.9, retry=0.8, view=0.5)
SOURCE = KataSource(KatasConfig(), Split.TRAIN)


async def in_sandboxes(template: Template, config: AgentConfig) -> list[Segment]:
    """What `write_demonstrations` does, over a real fleet."""
    rng = random.Random(f"{SOURCE.config.seed}/{SOURCE.split.value}")
    segments: list[Segment] = []
    async with ProcessFleet(MachinesConfig()) as fleet:
        for index in range(KATAS):
            kata = SOURCE.kata(index)
            calls = [ToolCall(move.tool, move.args) for move in demonstrate(kata, rng, SKILL)]
            agent = Agent(ScriptedEngine(template, calls), fleet, template, config, 1.0)
            segments += await agent.work(kata.task(), f"real-{index}")
    return segments


@pytest.mark.parametrize("context", [400, 240], ids=["in one window", "with summaries"])
def test_the_trusted_machine_answers_as_the_real_one(context: int) -> None:
    tokenizer = Tokenizer.train([SOURCE.kata(index).prompt for index in range(KATAS)], 512)
    config = AgentConfig(context=context)
    trusted = write_demonstrations(tokenizer, SOURCE.config, SKILL, config, Split.TRAIN, KATAS)
    real = asyncio.run(in_sandboxes(Template(tokenizer), config))
    assert (len(trusted) > KATAS) is (context == 240)
    assert [encode(segment) for segment in trusted] == [encode(segment) for segment in real]
