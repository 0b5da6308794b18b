"""Promise 1: what the engine read and wrote is, token by token, what the ledger holds, and nothing is re-tokenised.

Everything is real but the size: a model, the engine's own log, sandboxes, the harness, the ledger on disk. New weights
arrive in the middle, and there are fewer slots than rollouts, so that sessions are thrown out and computed again.
"""

import asyncio
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from etude.agent import Agent, Grades, Malformed, Template, ToolCall
from etude.config.agent import AgentConfig
from etude.config.inference import EngineConfig
from etude.config.machines import MachinesConfig
from etude.config.tasks import KatasConfig
from etude.corpus import Tokenizer
from etude.inference import EngineLog
from etude.inference.local import AsyncEngine, LocalEngine
from etude.machines import ProcessFleet
from etude.models import build_model, weights_of
from etude.records import MISSING_ROUTE, Origin, Outcome, PolicyVersion, Rollout, Segment, Task
from etude.records.ledger import Disposition, LedgerEntry, ledger_path, read_ledger, write_ledger
from etude.tasks.katas import KataSource, Split
from etude.weights import state_digest
from tests.models.tiny import config as tiny_config
from tests.models.tiny import perturb

KATAS, GROUP = 5, 4
SIZES = {"max_action": 12, "max_observation": 20, "max_summary": 8}
AGENT = AgentConfig(context=200, max_turns=7, max_malformed=7, max_summaries=3, **SIZES)


class Recorder(Template):
    """Remembers what the harness parsed, by the tokens that it was parsed from."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.parsed: dict[tuple[int, ...], ToolCall | Malformed] = {}

    def parse(self, sampled: np.ndarray) -> ToolCall | Malformed:
        call = self.parsed[tuple(sampled.tolist())] = super().parse(sampled)
        return call


# Which token follows which, when the model does as it is told.
HABITS = {
    "<|assistant|>": ("<|view|>", "<|run|>", "<|edit|>", "<|finish|>", "3"),
    "<|summary|>": ("1", "2"),
    "<|view|>": ("<|end|>",),
    "<|run|>": ("<|end|>",),
    "<|finish|>": ("<|end|>",),
    "<|edit|>": ("1", "2", "<|arg|>"),
    "<|arg|>": ("1", "2", "3"),
    "1": ("<|arg|>",),
    "2": ("<|arg|>",),
    "3": ("<|end|>",),
}


@torch.no_grad()
def talkative(tokenizer: Tokenizer) -> PreTrainedModel:
    """A random model with habits instead of training: its layers add little to the last token's embedding, and the
    output looks for the embeddings of those tokens that usually come before."""
    model = build_model(tiny_config("deepseek_v3", max_positions=256), tokenizer.vocab_size, seed=3)
    for name, parameter in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            parameter *= 0.03
    embeddings = nn.functional.normalize(model.model.embed_tokens.weight, dim=1)
    model.lm_head.weight *= 0.1
    for before, followers in HABITS.items():
        for follower in followers:
            model.lm_head.weight[_id(tokenizer, follower)] += 2.0 * embeddings[_id(tokenizer, before)]
    return model


def _id(tokenizer: Tokenizer, token: str) -> int:
    return tokenizer.special(token) if token.startswith("<|") else tokenizer.encode_text(token)[0]


def version_of(model: PreTrainedModel, step: int) -> PolicyVersion:
    return PolicyVersion(step, state_digest(weights_of(model)).hex())


async def attempts(tasks: list[Task], model: PreTrainedModel, template: Template, log: EngineLog) -> list[Rollout]:
    """A group of rollouts for each task; the weights change when the engine has answered 20 requests."""
    sizes = EngineConfig(slots=7, context=AGENT.context)
    engine = AsyncEngine(LocalEngine(model, sizes, version_of(model, 0), log))

    async def update() -> None:
        while len(log.entries) < 20:
            await asyncio.sleep(0.001)
        async with engine.gate:
            perturb(model, scale=0.02)
            engine.engine.set_version(version_of(model, 1))

    async with ProcessFleet(MachinesConfig(max_open=24)) as fleet:
        agent = Agent(engine, fleet, template, AGENT, temperature=1.0)
        updating = asyncio.create_task(update())
        runs = []
        for number, task in enumerate(tasks):
            grades = Grades(task, fleet)
            runs += [
                agent.run(task, f"g{number}-{k}", f"g{number}", 100 * number + k, grades=grades) for k in range(GROUP)
            ]
        rollouts = await asyncio.gather(*runs)
        await updating
    await engine.close()
    return rollouts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Rollout], EngineLog, Recorder]:
    """Rollouts as the ledger gives them back, the engine's log, and what the harness parsed."""
    source = KataSource(KatasConfig(), Split.TRAIN)
    tasks = [source.task(index) for index in range(KATAS)]
    template = Recorder(Tokenizer.train([task.prompt for task in tasks], 512))
    log = EngineLog()
    rollouts = asyncio.run(attempts(tasks, talkative(template.tokenizer), template, log))
    path = ledger_path(tmp_path_factory.mktemp("ledger"), 0)
    write_ledger(path, [LedgerEntry(rollout, 0, Disposition.TRAINED, 0.5) for rollout in rollouts])
    return [entry.rollout for entry in read_ledger(Path(path))], log, template


def test_the_ledger_holds_exactly_what_the_engine_read_and_wrote(
    run: tuple[list[Rollout], EngineLog, Recorder],
) -> None:
    rollouts, log, _ = run
    by_session = defaultdict(list)
    for session, read, wrote in log.entries:
        by_session[session].append((read, wrote))
    assert by_session.keys() == {rollout.rollout_id for rollout in rollouts}
    for rollout in rollouts:
        entries = by_session[rollout.rollout_id]
        for segment in rollout.segments:
            entries = entries[_requests_of(segment, entries) :]
        assert entries == []


def _requests_of(segment: Segment, entries: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> int:
    """How many of the entries make this segment; each read its beginning and wrote the SAMPLED tokens that follow."""
    ids, covered = tuple(segment.ids_T.tolist()), np.zeros(len(segment), bool)
    count = 0
    while not np.array_equal(covered, segment.sampled_T):
        read, wrote = entries[count]
        start, end = len(read), len(read) + len(wrote)
        assert ids[:start] == read
        assert ids[start:end] == wrote
        assert (segment.origin_T[start:end] == Origin.SAMPLED).all()
        assert not covered[start:end].any()
        covered[start:end] = True
        count += 1
    return count


def test_decoding_the_ledger_gives_the_text_that_the_harness_parsed(
    run: tuple[list[Rollout], EngineLog, Recorder],
) -> None:
    _, log, template = run
    decode = template.tokenizer.decode
    calls = 0
    for _, read, wrote in log.entries:
        if read[-2:] == tuple(template.query()):
            continue  # a summary is carried as tokens and never parsed
        call = template.parsed[wrote]
        if isinstance(call, ToolCall):
            assert decode(wrote) == f"<|{call.tool}|>{'<|arg|>'.join(call.args)}<|end|>"
            calls += 1
    assert calls > 20


def test_the_run_met_what_could_go_wrong(run: tuple[list[Rollout], EngineLog, Recorder]) -> None:
    """The two tests above are only as good as the run: tools, errors, summaries, both versions, evictions, all met."""
    rollouts, log, template = run
    tools = {call.tool for call in template.parsed.values() if isinstance(call, ToolCall)}
    assert tools == {"view", "edit", "run", "finish"}
    assert any(isinstance(call, Malformed) for call in template.parsed.values())
    assert all(rollout.outcome is not Outcome.INFRA_FAULT for rollout in rollouts)
    assert sum(rollout.counts["summaries"] for rollout in rollouts) >= 3
    assert {version.step for rollout in rollouts for version in rollout.versions} == {0, 1}
    assert any(len({v.step for v in rollout.versions}) == 2 for rollout in rollouts)
    routes = [segment.routes_TLK for rollout in rollouts for segment in rollout.segments]
    held = [segment.sampled_T.nonzero()[0].max() for rollout in rollouts for segment in rollout.segments]
    for routes_TLK, last in zip(routes, held, strict=True):
        assert (routes_TLK[:last] != MISSING_ROUTE).all()  # of every token that the engine read
        assert (routes_TLK[last:] == MISSING_ROUTE).all()
    assert len(log.entries) > 60
