"""`etude rl`: asynchronous reinforcement learning over Ray actors.

The loop, a phase a method: collect a batch -> train -> publish -> account -> commit. Rollouts go on all the while:
groups are admitted whenever one comes back or a version is published.

Invariant: kill this process, or any actor, at any moment: running the job again goes on from the last commit with the
same weights and the same position in the task stream. Steps after the commit are done again and their lines replaced.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from etude.config import to_toml
from etude.config.jobs import RLJob
from etude.observe import MetricsLog, progress
from etude.records import InfraError, UserError, write_atomic
from etude.records.ledger import ledger_files, ledger_path, write_ledger
from etude.runtime.actors import EngineHost, RunPaths, TrainerHost, WorkerHost
from etude.runtime.checkpoint import newest
from etude.runtime.metrics import StepClock, step_metrics
from etude.runtime.reconciler import Batch, Reconciler
from etude.weights import WeightsError

ENGINE_CALLS = 64  # one exchange of each worker, an update, and questions
MAX_ATTEMPTS = 5  # a group that meets infrastructure trouble this often ends the run: something is broken


def reinforce(job: RLJob) -> Path:
    """Run the job to its last step, from its last commit if there is one; returns the folder of the trained model.

    Does nothing when that folder is there already. Raises UserError and InfraError as the actors did.
    """
    paths = RunPaths(job)
    if paths.model.exists():
        return paths.model
    if not (paths.start / "config.json").is_file():  # said at once, not after Ray has started
        raise UserError(f"{paths.start}: no model to start from; run `etude pretrain` first, or set `model`")
    write_atomic(paths.rl / "config.toml", to_toml(job))
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)  # or each start prints a warning about its defaults
    ray.init(
        address=job.runtime.address,
        num_cpus=None if job.runtime.address else 2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    try:
        with _errors_of_actors(paths):
            asyncio.run(_run(job))
    finally:
        ray.shutdown()
    return paths.model


@contextlib.contextmanager
def _errors_of_actors(paths: RunPaths) -> Iterator[None]:
    """Errors as the actors raised them: Ray wraps each in one whose message is a traceback of many lines."""
    try:
        yield
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, WeightsError):
            again = "unless another run writes there, delete this folder: it is made again from the last checkpoint"
            raise UserError(f"{paths.chain}: {cause}; {again}") from None
        if isinstance(cause, UserError | InfraError):
            raise cause from None
        raise  # a bug keeps the actor's traceback
    except RayError as error:
        said = str(error).strip().splitlines()[-1].strip()
        raise InfraError(f"rl: an actor died ({said}); run the same command again to go on") from error


async def _run(job: RLJob) -> None:
    async with _actors(job) as run:
        with progress("rl: learning in sandboxes", job.rl.steps) as update:
            await run.learn(update)
        await run.trainer.export.remote()


def _actor(host: type, calls_at_once: int) -> Any:
    """A Ray actor class. It reserves no CPU: on two cores trainer, engine and workers share what there is."""
    return ray.remote(host).options(num_cpus=0, max_concurrency=calls_at_once)


@contextlib.asynccontextmanager
async def _actors(job: RLJob) -> AsyncIterator["_Run"]:
    """Start trainer, engine and workers, in the order in which they need each other."""
    saved = newest(RunPaths(job).checkpoints)
    trainer = _actor(TrainerHost, 1).remote(job)
    await trainer.start.remote(saved[0] if saved else None)  # the engine starts from the chain: it must have a head
    engine = _actor(EngineHost, ENGINE_CALLS).remote(job)
    await engine.start.remote()
    worker = _actor(WorkerHost, job.runtime.max_in_flight)
    workers = [worker.remote(job, f"worker-{number}", engine) for number in range(job.runtime.workers)]
    run = _Run(job, trainer, engine, workers, saved[1] if saved else None)
    try:
        yield run
    finally:
        await run.stop()


class _Run:
    """One process's share of a run: the reconciler and the tasks that feed it."""

    def __init__(self, job: RLJob, trainer: Any, engine: Any, workers: list[Any], state: dict[str, Any] | None) -> None:
        self.job, self.trainer, self.engine, self.workers = job, trainer, engine, workers
        self.paths = RunPaths(job)
        self.reconciler = Reconciler(job.rl, job.runtime.max_in_flight)
        if state is not None:
            self.reconciler.restore(state)
        self.metrics = MetricsLog(self.paths.metrics, resume_from=self.reconciler.version)
        for path in ledger_files(self.paths.ledger):  # of steps after the commit, which are done again
            if path >= ledger_path(self.paths.ledger, self.reconciler.version):
                path.unlink()
        self.clock = StepClock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._trouble: BaseException | None = None

    async def learn(self, on_progress: Callable[[float, str], None]) -> None:
        """All steps that are missing."""
        self._admit()
        while self.reconciler.version < self.job.rl.steps:
            self.clock.start()
            batch = await self._collect()
            self.clock.lap("wait_s")
            trained = await self.trainer.train.remote(batch.rollouts, batch.advantages)
            self.clock.lap("train_wall_s")
            published = await self._publish()
            on_progress(self.reconciler.version, await self._account(trained | published))
            if (
                self.reconciler.version % self.job.rl.checkpoint_every == 0
                or self.reconciler.version == self.job.rl.steps
            ):
                await self.trainer.commit.remote(self.reconciler.state())

    async def stop(self) -> None:
        """End all running groups."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _collect(self) -> Batch:
        while not self.reconciler.ready():
            self._admit()
            if self._trouble is not None:
                raise self._trouble
            self._changed.clear()
            await self._changed.wait()
        return self.reconciler.take_batch()

    def _admit(self) -> None:
        for group, attempt in self.reconciler.admit():
            task = asyncio.create_task(self._run_group(group, attempt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_group(self, group: int, attempt: int) -> None:
        """One group on the worker that its number picks; a late one is run again."""
        worker = self.workers[(group + attempt) % len(self.workers)]
        try:
            if attempt >= MAX_ATTEMPTS:
                raise InfraError(
                    f"group {group} met infrastructure trouble {attempt} times; see the ledger for details"
                )
            reply = worker.run_group.remote(group, attempt)
            rollouts = await asyncio.wait_for(_as_future(reply), self.job.runtime.group_timeout_s)
        except TimeoutError:
            self.reconciler.lost(group)
        except Exception as error:
            self._trouble = error
        else:
            self.reconciler.finished(group, rollouts)
        self._admit()
        self._changed.set()

    async def _publish(self) -> dict[str, Any]:
        report, canary = await self.trainer.publish.remote()
        acknowledged = await self.engine.update.remote(canary)
        if acknowledged.version != report.version:
            raise InfraError(f"the engine serves {acknowledged.version}, the trainer published {report.version}")
        self.reconciler.published(report.version.step)
        self._admit()
        self.clock.lap("publish_s")
        return {
            "delta_bytes": report.delta_bytes,
            "full_bytes": report.full_bytes,
            "delta_ratio": report.full_bytes / report.delta_bytes,
            "changed_share": report.changed / report.elements,
            "pause_s": acknowledged.pause_s,
            "canary_gap": acknowledged.canary_gap,
        }

    async def _account(self, measured: dict[str, Any]) -> str:
        """Ledger and metrics of the step that was just published.

        Nothing is awaited between draining and the state that is committed: a group settled in between would be in the
        commit's position but in no ledger.
        """
        step = self.reconciler.version - 1
        tokens = await self.engine.sampled_tokens.remote()
        settled = self.reconciler.drain_settled()
        write_ledger(ledger_path(self.paths.ledger, step), settled)
        row = step_metrics(settled, self.clock, tokens) | measured
        self.metrics.write(step, **row)
        return f"reward {row['reward_mean']:.2f}, {row['step_s']:.1f} s a step, lag {row['staleness_mean']:.1f}"


async def _as_future(reply: Any) -> Any:
    return await reply
