"""Measuring one checkpoint on held-out tasks, in one process.

Invariant: infrastructure faults are tried again and never counted as failures; every task has all its samples in the
result, or there is no result.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec

from etude.agent import Agent, Template
from etude.config.jobs import EvalJob
from etude.corpus import Tokenizer
from etude.evaluate.stats import Interval, bootstrap_mean
from etude.inference.local import AsyncEngine, LocalEngine
from etude.machines import ProcessFleet
from etude.models import load_model, use_threads, weights_of
from etude.records import InfraError, Outcome, PolicyVersion, Rollout, Task
from etude.rl import mismatch
from etude.tasks.katas import KataSource, Split
from etude.weights import state_digest

MAX_ATTEMPTS = 3


class EvalResult(msgspec.Struct):
    """What `runs/NAME/eval/*.json` holds. Intervals are 95 %, over tasks."""

    name: str
    label: str
    step: int
    digest: str
    temperature: float
    tasks: int
    samples: int
    pass_at_1: Interval
    by_tier: dict[str, Interval]
    outcomes: dict[str, int]
    tokens_per_rollout: float
    tokens_per_solved: float | None
    seconds_per_task: float
    mismatch: dict[str, float]
    per_task: dict[str, list[float]]


def evaluate_model(
    job: EvalJob, model_folder: Path, name: str, label: str, on_progress: Callable[[float, str], None]
) -> tuple[EvalResult, list[Rollout]]:
    """Attempt the first held-out tasks with the model in `model_folder`. Returns the result and its rollouts."""
    use_threads(job.evaluate.threads)
    model = load_model(model_folder, job.dtype)
    version = PolicyVersion(0, state_digest(weights_of(model)).hex())
    source = KataSource(job.katas, Split.HELD_OUT)
    tasks = [source.task(index) for index in range(job.evaluate.tasks)]
    started = time.perf_counter()
    rollouts = asyncio.run(_attempt_all(job, LocalEngine(model, job.engine, version), model_folder, tasks, on_progress))
    seconds = time.perf_counter() - started
    return _summarise(job, name, label, version, rollouts, seconds, mismatch(model, rollouts, _scale(job))), rollouts


def _scale(job: EvalJob) -> float:
    return job.evaluate.temperature or 1.0


async def _attempt_all(
    job: EvalJob, engine: LocalEngine, folder: Path, tasks: list[Task], on_progress: Callable[[float, str], None]
) -> list[Rollout]:
    served = AsyncEngine(engine)
    fleet = ProcessFleet(job.machines)
    await fleet.start()
    try:
        agent = Agent(served, fleet, Template(Tokenizer.load(folder)), job.agent, job.evaluate.temperature)
        limit = asyncio.Semaphore(job.evaluate.in_flight)
        total = len(tasks) * job.evaluate.samples
        finished: list[Rollout] = []

        async def attempt(number: int, task: Task) -> None:
            async with limit:
                finished.append(await _attempt(agent, task, number, job.evaluate.seed))
            solved = sum(rollout.outcome is Outcome.SOLVED for rollout in finished)
            on_progress(len(finished) / total, f"{solved} of {len(finished)} solved")

        try:
            async with asyncio.TaskGroup() as group:
                for sample in range(job.evaluate.samples):
                    for number, task in enumerate(tasks):
                        group.create_task(attempt(sample * len(tasks) + number, task))
        except ExceptionGroup as errors:  # the others were cancelled for it
            raise errors.exceptions[0] from None
        return finished
    finally:
        await served.close()
        await fleet.close()


async def _attempt(agent: Agent, task: Task, number: int, seed: int) -> Rollout:
    for attempt in range(MAX_ATTEMPTS):
        rollout = await agent.run(task, f"eval-{number}", f"eval-{task.task_id}", seed + number, attempt)
        if rollout.reward is not None:
            return rollout
    raise InfraError(f"task {task.task_id} met infrastructure trouble {MAX_ATTEMPTS} times: {rollout.detail}")


def _summarise(
    job: EvalJob,
    name: str,
    label: str,
    version: PolicyVersion,
    rollouts: list[Rollout],
    seconds: float,
    gaps: dict[str, float],
) -> EvalResult:
    per_task: dict[str, list[float]] = defaultdict(list)
    by_tier: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rollout in sorted(rollouts, key=lambda r: r.rollout_id):
        per_task[rollout.task_id].append(rollout.reward or 0.0)
        by_tier[str(rollout.tier)][rollout.task_id].append(rollout.reward or 0.0)
    solved = sum(rollout.outcome is Outcome.SOLVED for rollout in rollouts)
    tokens = sum(rollout.sampled_tokens for rollout in rollouts)
    return EvalResult(
        name=name,
        label=label,
        step=version.step,
        digest=version.digest,
        temperature=job.evaluate.temperature,
        tasks=len(per_task),
        samples=job.evaluate.samples,
        pass_at_1=bootstrap_mean(dict(per_task), seed=0),
        by_tier={tier: bootstrap_mean(dict(values), seed=0) for tier, values in sorted(by_tier.items())},
        outcomes=dict(Counter(rollout.outcome.value for rollout in rollouts)),
        tokens_per_rollout=tokens / len(rollouts),
        tokens_per_solved=tokens / solved if solved else None,
        seconds_per_task=seconds / len(per_task),
        mismatch=gaps,
        per_task=dict(per_task),
    )
