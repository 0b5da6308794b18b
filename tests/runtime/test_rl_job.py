"""The loop over actors that answer at once: what is retried, what ends a run, and what each step leaves on disk."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from etude.config.jobs import RLJob
from etude.config.runtime import RuntimeConfig
from etude.inference.local import Acknowledgement
from etude.observe import MetricsLog, read_metrics
from etude.records import InfraError, PolicyVersion, Rollout, UserError
from etude.records.ledger import Disposition, LedgerEntry, ledger_files, ledger_path, read_ledger, write_ledger
from etude.runtime import rl_job
from etude.runtime.actors import RunPaths
from etude.weights import PublishReport, WeightsError
from etude.weights.chain import Kind
from tests.runtime.rollouts import BROKEN, MIXED, config, group

Work = Callable[[int, int], Awaitable[list[Rollout]]]


class Remote:
    """`actor.method.remote(...)` of a plain coroutine function."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


def version(step: int) -> PolicyVersion:
    return PolicyVersion(step, f"{step:032x}")


class Trainer:
    """Counts steps and remembers commits."""

    def __init__(self) -> None:
        self.step = 0
        self.trained: list[list[str]] = []
        self.commits: list[dict[str, Any]] = []
        self.train, self.publish, self.commit = Remote(self._train), Remote(self._publish), Remote(self._commit)

    async def _train(self, rollouts: Sequence[Rollout], advantages: dict[str, float]) -> dict[str, float]:
        self.trained.append([one.rollout_id for one in rollouts])
        self.step += 1
        return {"loss": 0.5, "staleness_mean": 0.0}

    async def _publish(self) -> tuple[PublishReport, tuple[float, ...]]:
        report = PublishReport(version(self.step), Kind.DELTA, 10, 100, 10.0, 3, 50, 0.1)
        return report, (0.0,)

    async def _commit(self, state: dict[str, Any]) -> None:
        self.commits.append(state)


class Engine:
    """Serves what the trainer published, or `lies` about it."""

    def __init__(self, trainer: Trainer, lies: bool = False) -> None:
        self.trainer, self.lies = trainer, lies
        self.update, self.sampled_tokens = Remote(self._update), Remote(self._sampled_tokens)

    async def _update(self, canary: Sequence[float]) -> Acknowledgement:
        step = 0 if self.lies else self.trainer.step
        return Acknowledgement(version(step), pause_s=0.25, prepare_s=0.5, canary_gap=0.0)

    async def _sampled_tokens(self) -> int:
        for _ in range(5):  # groups come back meanwhile
            await asyncio.sleep(0)
        return 100 * self.trainer.step


class Loop:
    """A run of `steps` steps whose worker is `work`."""

    def __init__(
        self, folder: Path, work: Work, steps: int = 3, lies: bool = False, state: dict[str, Any] | None = None,
        timeout_s: float = 60.0,
    ) -> None:  # fmt: skip
        rl, runtime = config(steps=steps, checkpoint_every=2), RuntimeConfig(group_timeout_s=timeout_s)
        job = RLJob(run=str(folder), rl=rl, runtime=runtime)
        self.trainer = Trainer()
        self.trainer.step = state["version"] if state else 0
        worker = type("Worker", (), {"run_group": Remote(work)})()
        self.run = rl_job._Run(job, self.trainer, Engine(self.trainer, lies), [worker], state)
        self.paths, self.notes = RunPaths(job), []

    def go(self) -> None:
        async def learn() -> None:
            try:
                await self.run.learn(lambda done, note: self.notes.append((done, note)))
            finally:
                await self.run.stop()

        asyncio.run(asyncio.wait_for(learn(), 20))

    def ledger(self) -> list[LedgerEntry]:
        return [entry for path in ledger_files(self.paths.ledger) for entry in read_ledger(path)]


def steps_of(number: int) -> int:
    """The version that a group of the stream is sampled by, when all goes well."""
    return number // 4


async def at_once(number: int, attempt: int) -> list[Rollout]:
    await asyncio.sleep(0)
    return group(number, MIXED, (steps_of(number),), attempt)


def test_each_step_leaves_a_ledger_and_a_line(tmp_path: Path) -> None:
    loop = Loop(tmp_path, at_once)
    loop.go()
    rows = read_metrics(loop.paths.metrics)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert [path.name for path in ledger_files(loop.paths.ledger)] == [f"step-00000{n}.parquet" for n in range(3)]
    for row, note in zip(rows, loop.notes, strict=True):
        assert (row["delta_ratio"], row["changed_share"], row["pause_s"], row["canary_gap"]) == (10.0, 0.06, 0.25, 0.0)
        assert (row["loss"], row["reward_mean"], row["rollouts_trained"]) == (0.5, 0.5, 4)
        assert note[0] == row["step"] + 1 and note[1].startswith("reward 0.50, ")
    trained = [e.rollout.rollout_id for e in loop.ledger() if e.disposition is Disposition.TRAINED]
    assert trained == [name for batch in loop.trainer.trained for name in batch]
    assert len(set(trained)) == 12
    assert [state["version"] for state in loop.trainer.commits] == [2, 3]  # every second step, and the last


def test_what_a_commit_says_is_settled_is_in_the_ledger(tmp_path: Path) -> None:
    """Groups without gradient are settled at any time, also while the step's numbers are collected: a commit must not
    name one whose rollouts no ledger holds."""

    async def mostly_flat(number: int, attempt: int) -> list[Rollout]:
        for _ in range(number % 5):
            await asyncio.sleep(0)
        return group(number, MIXED if number % 3 == 0 else (MIXED[0],) * 2, (loop.run.reconciler.version,), attempt)

    loop = Loop(tmp_path, mostly_flat, steps=12)
    loop.go()
    for state in loop.trainer.commits:
        files = [
            path for path in ledger_files(loop.paths.ledger) if path < ledger_path(loop.paths.ledger, state["version"])
        ]
        written = {int(entry.rollout.group_id[1:]) for path in files for entry in read_ledger(path)}
        assert {*range(state["low"]), *state["above"]} == written


def test_fault_23_one_straggler_no_deadline(tmp_path: Path) -> None:
    """Groups that hang are run again after their time, and the step fills."""

    async def first_hang(number: int, attempt: int) -> list[Rollout]:
        if number < 4 and attempt == 0:
            await asyncio.sleep(3600)
        return await at_once(number, attempt)

    loop = Loop(tmp_path, first_hang, timeout_s=0.05)
    loop.go()
    trained = [name for batch in loop.trainer.trained for name in batch]
    assert {name for name in trained if name.endswith("-a1")} == {f"g{n}-{k}-a1" for n in range(4) for k in range(2)}
    assert len(trained) == len(set(trained)) == 12


def test_fault_23_one_dead_producer_no_channel(tmp_path: Path) -> None:
    """A worker that raises ends the run at once, with its own error: nobody polls an empty buffer."""

    async def dead(number: int, attempt: int) -> list[Rollout]:
        raise InfraError("the worker is gone")

    with pytest.raises(InfraError, match="the worker is gone"):
        Loop(tmp_path, dead).go()


def test_trouble_that_never_ends_ends_the_run(tmp_path: Path) -> None:
    async def broken(number: int, attempt: int) -> list[Rollout]:
        return group(number, BROKEN, (0,), attempt)

    loop = Loop(tmp_path, broken)
    with pytest.raises(InfraError, match="group 0 met infrastructure trouble 5 times"):
        loop.go()
    assert loop.trainer.trained == []


def test_fault_1_version_advanced_without_weights(tmp_path: Path) -> None:
    """An engine that answers with another version than the published one ends the run: its answer is read."""
    loop = Loop(tmp_path, at_once, lies=True)
    with pytest.raises(InfraError, match="the engine serves 0@00000000, the trainer published 1@00000000"):
        loop.go()
    assert read_metrics(loop.paths.metrics) == [] and loop.trainer.commits == []


def test_a_resumed_run_drops_what_was_done_after_its_commit(tmp_path: Path) -> None:
    paths = RunPaths(RLJob(run=str(tmp_path), rl=config()))
    log = MetricsLog(paths.metrics)
    for step in range(5):
        log.write(step, loss=9.0)
        entries = [LedgerEntry(one, step, Disposition.TRAINED, 0.0) for one in group(step, MIXED)]
        write_ledger(ledger_path(paths.ledger, step), entries)
    loop = Loop(tmp_path, at_once, steps=4, state={"version": 3, "low": 12, "above": [14]})
    assert [row["step"] for row in read_metrics(paths.metrics)] == [0, 1, 2]
    assert [path.name for path in ledger_files(paths.ledger)] == [f"step-00000{step}.parquet" for step in range(3)]
    loop.go()
    assert loop.trainer.trained == [["g12-0-a0", "g12-1-a0", "g13-0-a0", "g13-1-a0"]]
    assert [row["step"] for row in read_metrics(paths.metrics)] == [0, 1, 2, 3]


WRAPPED = {
    "a mistake of the user": (UserError("RUN: no model here"), UserError, r"^RUN: no model here$"),
    "infrastructure": (InfraError("no machine"), InfraError, r"^no machine$"),
    "weights": (WeightsError("blob abc: torn"), UserError, r"^.*/rl/chain: blob abc: torn; .*delete this folder"),
    "a bug": (KeyError("x"), RayTaskError, r"KeyError"),
}


@pytest.mark.parametrize(("cause", "kind", "message"), WRAPPED.values(), ids=WRAPPED)
def test_an_error_of_an_actor_keeps_its_kind(
    cause: Exception, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    paths = RunPaths(RLJob(run=str(tmp_path), rl=config()))
    wrapped = RayTaskError("start", "Traceback ...\n  many lines\nKeyError: 'x'", cause).as_instanceof_cause()
    with pytest.raises(kind, match=message) as caught, rl_job._errors_of_actors(paths):
        raise wrapped
    assert isinstance(cause, KeyError) or "\n" not in str(caught.value)


def test_an_actor_that_was_killed_is_infrastructure(tmp_path: Path) -> None:
    paths = RunPaths(RLJob(run=str(tmp_path), rl=config()))
    again = r"an actor died .*run the same command again"
    with pytest.raises(InfraError, match=again) as caught, rl_job._errors_of_actors(paths):
        raise ActorDiedError()
    assert "\n" not in str(caught.value)
