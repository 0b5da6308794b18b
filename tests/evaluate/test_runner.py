"""A measurement is complete or there is none: trouble is tried again, every sample is in the result, by value."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from etude.config.agent import AgentConfig
from etude.config.evaluate import EvaluateConfig
from etude.config.inference import EngineConfig
from etude.config.jobs import EvalJob
from etude.config.tasks import KatasConfig
from etude.corpus import Tokenizer
from etude.evaluate import runner
from etude.evaluate.runner import EvalResult, evaluate_model
from etude.evaluate.stats import bootstrap_mean
from etude.models import build_model, load_model, save_model, weights_of
from etude.records import InfraError, Outcome, PolicyVersion, Rollout
from etude.tasks.katas import KataSource, Split
from etude.weights import state_digest
from tests.models.tiny import config as tiny_config
from tests.runtime.rollouts import rollout

CONTEXT = 200
JOB = EvalJob(
    run="unused",
    dtype="float32",
    evaluate=EvaluateConfig(tasks=3, samples=2, in_flight=4, threads=1),
    engine=EngineConfig(slots=4, context=CONTEXT),
    agent=AgentConfig(context=CONTEXT, max_turns=2, max_action=6, max_observation=10, max_summary=6),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = KataSource(KatasConfig(), Split.HELD_OUT)
    tokenizer = Tokenizer.train([source.kata(index).prompt for index in range(30)], 512)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_model(build_model(tiny_config("deepseek_v3", max_positions=CONTEXT), 512, 0), folder, tokenizer.save)
    return folder


def measure(model: Path, job: EvalJob = JOB) -> tuple[EvalResult, list[Rollout]]:
    return evaluate_model(job, model, "tiny", "a tiny one", lambda share, note: None)


def test_every_task_has_all_its_samples_and_the_weights_are_named(model: Path) -> None:
    result, rollouts = measure(model)
    source = KataSource(KatasConfig(), Split.HELD_OUT)
    assert result.per_task.keys() == {source.task(index).task_id for index in range(3)}
    assert [len(values) for values in result.per_task.values()] == [2, 2, 2]
    assert (result.tasks, result.samples, sum(result.outcomes.values())) == (3, 2, 6)
    assert result.digest == state_digest(weights_of(load_model(model, "float32"))).hex()
    assert len({one.rollout_id for one in rollouts}) == 6
    assert {version for one in rollouts for version in one.versions} == {PolicyVersion(0, result.digest)}
    assert result.mismatch["k3_replay"] < 1e-6
    assert result.mismatch["tokens"] == sum(one.sampled_tokens for one in rollouts)


def test_measuring_again_gives_the_same_and_another_seed_does_not(model: Path) -> None:
    def tokens(job: EvalJob) -> dict[str, list[list[int]]]:
        return {one.rollout_id: [s.ids_T.tolist() for s in one.segments] for one in measure(model, job)[1]}

    first = tokens(JOB)
    narrow = JOB.model_copy(update={"evaluate": JOB.evaluate.model_copy(update={"in_flight": 1})})
    assert tokens(narrow) == first  # whatever runs beside it
    other = JOB.model_copy(update={"evaluate": JOB.evaluate.model_copy(update={"seed": 99})})
    assert tokens(other) != first


def test_temperature_zero_is_the_most_likely_token(model: Path) -> None:
    greedy = JOB.model_copy(update={"evaluate": JOB.evaluate.model_copy(update={"temperature": 0.0, "tasks": 1})})
    result, rollouts = measure(model, greedy)
    first, second = ([s.ids_T.tolist() for s in one.segments] for one in rollouts)
    assert first == second
    assert result.temperature == 0.0


class Agent:
    """Ends attempts as told, in order."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, int, int]] = []

    async def run(self, task: object, rollout_id: str, group_id: str, seed: int, attempt: int = 0) -> Rollout:
        self.asked.append((rollout_id, seed, attempt))
        return rollout(0, outcome=self.outcomes[len(self.asked) - 1], attempt=attempt)


def attempt(agent: Agent) -> Rollout:
    task = KataSource(KatasConfig(), Split.HELD_OUT).task(0)
    return asyncio.run(runner._attempt(agent, task, number=4, seed=10))  # type: ignore[arg-type]


def test_fault_9_harness_failure_scored_as_zero() -> None:
    """Infrastructure trouble is tried again with the same seed, and the attempt that worked is the one that counts."""
    agent = Agent(Outcome.INFRA_FAULT, Outcome.INFRA_FAULT, Outcome.SOLVED)
    assert attempt(agent).reward == 1.0
    assert agent.asked == [("eval-4", 14, 0), ("eval-4", 14, 1), ("eval-4", 14, 2)]


def test_trouble_without_end_is_no_measurement(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error, not a group of them, although other attempts run beside it."""
    trouble = Agent(*[Outcome.INFRA_FAULT] * 99)
    monkeypatch.setattr(runner, "Agent", lambda *_: trouble)
    with pytest.raises(InfraError, match="met infrastructure trouble 3 times"):
        measure(model)


def summary(rollouts: Sequence[Rollout]) -> EvalResult:
    version = PolicyVersion(0, "ab" * 16)
    return runner._summarise(JOB, "n", "l", version, list(rollouts), 12.0, {"k3_replay": 0.0})


def test_the_numbers_by_value() -> None:
    """Two samples of two tasks of different tiers; tokens are of all samples, solved or not."""
    rollouts = [
        rollout(1, 0, Outcome.SOLVED, (0, 0, 0)),
        rollout(1, 1, Outcome.FAILED, (0,)),
        msgspec.structs.replace(rollout(2, 0, Outcome.OVERLONG, (0, 0), segments=2), tier=3),
        msgspec.structs.replace(rollout(2, 1, Outcome.AGENT_FAULT, ()), tier=3),
    ]
    result = summary(rollouts)
    assert result.per_task == {"task-1": [1.0, 0.0], "task-2": [0.0, 0.0]}
    assert result.pass_at_1 == bootstrap_mean(result.per_task) and result.pass_at_1.mean == 0.25
    assert {tier: one.mean for tier, one in result.by_tier.items()} == {"1": 0.5, "3": 0.0}
    assert result.outcomes == {"solved": 1, "failed": 1, "overlong": 1, "agent_fault": 1}
    assert result.tokens_per_rollout == 8 / 4
    assert result.tokens_per_solved == 8.0
    assert result.seconds_per_task == 6.0
    assert (result.tasks, result.step, result.digest) == (2, 0, "ab" * 16)


def test_nothing_solved_has_no_cost_per_solved() -> None:
    assert summary([rollout(1, 0, Outcome.FAILED)]).tokens_per_solved is None
