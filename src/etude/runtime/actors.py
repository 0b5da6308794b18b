"""The three kinds of actors, as plain classes; `runtime.rl_job` makes Ray actors of them.

Invariant: an actor holds no state that the run folder does not also hold as of the last commit, so that a dead one is
replaced by starting the job again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etude.agent import Agent, Grades, Template
from etude.config.jobs import RLJob
from etude.corpus import Tokenizer
from etude.inference import EngineClient, EngineLog, Request
from etude.inference.local import Acknowledgement, EngineService, LocalEngine, canary_logprobs
from etude.machines import ProcessFleet
from etude.models import load_model, save_model, use_threads, weights_of
from etude.records import PolicyVersion, Rollout
from etude.rl import Trainer
from etude.runtime.checkpoint import load_trainer, save_trainer
from etude.tasks.katas import KataSource, Split
from etude.weights import Chain, Publisher, PublishReport, Replica

POLL_S = 0.5  # an exchange with nothing to say returns after this long


class RunPaths:
    """Where an RL run keeps its things."""

    def __init__(self, job: RLJob) -> None:
        self.run = Path(job.run)
        self.start = Path(job.model) if job.model else self.run / "pretrain" / "sft"
        self.rl = self.run / "rl"
        self.chain = self.rl / "chain"
        self.checkpoints = self.rl / "checkpoints"
        self.ledger = self.rl / "ledger"
        self.metrics = self.rl / "metrics.jsonl"
        self.model = self.rl / "model"


class TrainerHost:
    """Owns the policy being trained, its optimizer and the head of the chain."""

    def __init__(self, job: RLJob) -> None:
        use_threads(job.runtime.trainer_threads)
        self.job, self.paths = job, RunPaths(job)

    def start(self, checkpoint: Path | None) -> None:
        """Load the model or the checkpoint, and make it the head of the chain. Not done at construction: an error of an
        actor's constructor loses its kind on the way to the driver."""
        self.trainer = Trainer(load_model(self.paths.start, self.job.dtype), self.job.rl)
        if checkpoint is not None:
            load_trainer(checkpoint, self.trainer)
        chain = Chain(str(self.paths.chain))
        self.publisher = Publisher.resume(chain, weights_of(self.trainer.model), self.trainer.step)

    def train(self, rollouts: Sequence[Rollout], advantages: Mapping[str, float]) -> dict[str, float]:
        """See `Trainer.train`."""
        return self.trainer.train(rollouts, advantages)

    def publish(self) -> tuple[PublishReport, tuple[float, ...]]:
        """Put the current weights at the head of the chain; returns the report and the canary's logprobs."""
        report = self.publisher.publish(weights_of(self.trainer.model), self.trainer.step)
        return report, self.canary()

    def canary(self) -> tuple[float, ...]:
        """What an engine with these weights must answer to the canary prompt."""
        return canary_logprobs(self.trainer.model)

    def commit(self, reconciler: dict[str, Any]) -> None:
        """Write weights, optimizer, cursor and chain head as one checkpoint."""
        save_trainer(self.paths.checkpoints, self.trainer, reconciler)

    def export(self) -> None:
        """Write the trained policy as a Hugging Face folder with its tokenizer."""
        save_model(self.trainer.model, self.paths.model, Tokenizer.load(self.paths.start).save)


class EngineHost:
    """Serves the head of the chain."""

    def __init__(self, job: RLJob) -> None:
        use_threads(job.engine.threads)
        self.job, self.paths = job, RunPaths(job)
        self.log = EngineLog() if job.runtime.engine_log else None

    async def start(self) -> PolicyVersion:
        """Load the head of the chain and serve it. Raises WeightsError when the chain cannot be followed."""
        model = load_model(self.paths.start, self.job.dtype)
        replica, chain = Replica(weights_of(model), None), Chain(str(self.paths.chain))
        version = replica.commit(replica.prepare(chain))
        self.service = EngineService(LocalEngine(model, self.job.engine, version, self.log), replica, chain)
        return version

    async def exchange(self, client: str, requests: Sequence[Request], released: Sequence[str]) -> list[Any]:
        """See `EngineService.exchange`."""
        return await self.service.exchange(client, requests, released, POLL_S)

    async def update(self, canary: Sequence[float]) -> Acknowledgement:
        """See `EngineService.update`."""
        return await self.service.update(canary)

    async def sampled_tokens(self) -> int:
        """Tokens sampled since the start."""
        return self.service.engine.engine.sampled_tokens

    async def log_entries(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """The engine's own account of what it read and wrote; empty unless runtime.engine_log is set."""
        return self.log.entries if self.log is not None else []


class WorkerHost:
    """Runs agents: many rollouts at once in one loop, each in machines of its own."""

    def __init__(self, job: RLJob, name: str, engine: Any) -> None:
        use_threads(1)
        self.job, self.name, self.engine = job, name, engine
        self.source = KataSource(job.katas, Split.TRAIN)
        self.agent: Agent | None = None
        self._starting = asyncio.Lock()

    async def run_group(self, group: int, attempt: int) -> list[Rollout]:
        """The rollouts of one group. `group` is the position in the task stream, and seeds the sampling."""
        agent = await self._ready()
        task = self.source.task(group)
        size = self.job.rl.group_size
        grades = Grades(task, agent.fleet)
        runs = [
            agent.run(
                task, f"g{group}-{member}-a{attempt}", f"g{group}", self._seed(group, member, attempt), attempt, grades
            )
            for member in range(size)
        ]
        return list(await asyncio.gather(*runs))

    async def _ready(self) -> Agent:
        async with self._starting:
            if self.agent is None:
                template = Template(Tokenizer.load(RunPaths(self.job).start))
                fleet = ProcessFleet(self.job.machines)
                await fleet.start()
                client = EngineClient(
                    lambda requests, released: self.engine.exchange.remote(self.name, requests, released)
                )
                self.agent = Agent(client, fleet, template, self.job.agent, self.job.rl.temperature)
        return self.agent

    def _seed(self, group: int, member: int, attempt: int) -> int:
        return ((self.job.rl.seed * 1_000_003 + group) * 64 + member) * 8 + attempt
