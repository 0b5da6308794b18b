"""`eval/NAME.json` stands for a measurement that is complete; what was measured is not measured again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from etude.config.jobs import EvalJob
from etude.evaluate import job
from etude.evaluate.job import evaluate_run
from etude.evaluate.runner import EvalResult
from etude.evaluate.stats import Interval
from etude.records import InfraError, Rollout, UserError
from etude.records.ledger import Disposition, read_ledger
from tests.runtime.rollouts import rollout

HALF = Interval(0.5, 0.25, 0.75, 2)


class Measured:
    """Stands for `evaluate_model`; remembers which folders it was given."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.trouble: Exception | None = None

    def __call__(
        self, config: EvalJob, folder: Path, name: str, label: str, update: Callable[..., None]
    ) -> tuple[EvalResult, list[Rollout]]:
        self.folders.append(folder.name)
        if self.trouble:
            raise self.trouble
        result = EvalResult(
            name=name, label=label, step=0, digest="ab" * 16, temperature=1.0, tasks=2, samples=1, pass_at_1=HALF,
            by_tier={"1": HALF}, outcomes={"solved": 1, "failed": 1}, tokens_per_rollout=3.0, tokens_per_solved=None,
            seconds_per_task=1.0, mismatch={"k3_replay": 0.0}, per_task={"a": [1.0], "b": [0.0]},
        )  # fmt: skip
        return result, [rollout(0), rollout(1)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    made = Measured()
    monkeypatch.setattr(job, "evaluate_model", made)
    return made


def run_with(folder: Path, *models: str) -> EvalJob:
    for model in models:
        (folder / model).mkdir(parents=True)
    return EvalJob(run=str(folder))


def test_what_is_there_is_measured_once_in_the_order_of_the_config(tmp_path: Path, measured: Measured) -> None:
    config = run_with(tmp_path, "rl/model", "pretrain/sft")
    first = evaluate_run(config)
    assert [result.name for result in first] == ["sft", "rl"]
    assert measured.folders == ["sft", "model"]
    assert {path.name for path in (tmp_path / "eval").iterdir()} == {
        "config.toml", "sft.json", "sft.parquet", "rl.json", "rl.parquet",
    }  # fmt: skip
    assert evaluate_run(config) == first
    assert measured.folders == ["sft", "model"]
    (tmp_path / "eval" / "sft.json").unlink()
    assert evaluate_run(config) == first
    assert measured.folders == ["sft", "model", "sft"]


def test_the_rollouts_are_kept_as_measured_and_not_trained(tmp_path: Path, measured: Measured) -> None:
    evaluate_run(run_with(tmp_path, "pretrain/sft"))
    entries = read_ledger(tmp_path / "eval" / "sft.parquet")
    assert [entry.rollout.rollout_id for entry in entries] == ["g0-0-a0", "g1-0-a0"]
    assert {(entry.disposition, entry.advantage) for entry in entries} == {(Disposition.EVAL, None)}


def test_a_measurement_that_failed_leaves_no_result(tmp_path: Path, measured: Measured) -> None:
    measured.trouble = InfraError("machines are gone")
    with pytest.raises(InfraError):
        evaluate_run(run_with(tmp_path, "pretrain/sft"))
    assert [path.name for path in (tmp_path / "eval").iterdir()] == ["config.toml"]


def test_a_result_that_is_none_is_told(tmp_path: Path, measured: Measured) -> None:
    config = run_with(tmp_path, "pretrain/sft", "eval")
    for content in ('{"name": "sft"', "[]", '{"name": 3}'):
        (tmp_path / "eval" / "sft.json").write_text(content)
        with pytest.raises(UserError, match=r"sft\.json: not a result .*delete it to measure again"):
            evaluate_run(config)


def test_a_run_without_models_is_told_what_was_looked_for(tmp_path: Path, measured: Measured) -> None:
    with pytest.raises(UserError, match=r"nothing to evaluate; expected one of .*pretrain/bulk, .*sft, .*rl/model"):
        evaluate_run(run_with(tmp_path))
    assert list(tmp_path.iterdir()) == []
