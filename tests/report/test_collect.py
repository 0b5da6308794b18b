"""A report can be made at any moment of a run; what is missing is missing and what is broken is named."""

import json
from pathlib import Path

import pytest

from etude.evaluate.stats import paired_difference
from etude.observe import MetricsLog
from etude.records import UserError
from etude.records.ledger import ledger_files, ledger_path, read_ledger, write_ledger
from etude.report import ReportData, as_json, collect, render
from tests.report.synthetic import STAGES, STEPS, make_run

QUICK = ("corpus", "pretrain", "rl", "eval", "timing", "configs")


def test_a_whole_run_has_every_part(data: ReportData) -> None:
    assert data.problems == []
    assert [one.name for one in data.evaluations] == ["bulk", "sft", "rl"]
    assert data.corpus is not None and data.corpus["dropped"]["near_duplicate"] == 212
    assert data.rl is not None and data.rl.step == list(range(STEPS))
    assert data.pretrain is not None and set(data.pretrain.phase) == {"bulk", "sft"}
    assert set(data.configs) == {"rl", "pretrain"}
    assert len(data.rollouts) == 5


@pytest.mark.parametrize("count", range(len(QUICK)))
def test_a_report_can_be_made_after_every_stage(tmp_path: Path, count: int) -> None:
    data = collect(make_run(tmp_path / "run", QUICK[:count]))
    assert data.problems == []
    assert (data.corpus is None, data.pretrain is None, data.rl is None) == (count < 1, count < 2, count < 3)
    assert (data.evaluations == [], data.timing == {}) == (count < 4, count < 5)
    assert (data.ledger, data.rollouts, data.headline.gain is None) == (None, [], count < 4)
    assert "<html" in render(data)
    json.loads(as_json(data))


def test_each_stage_alone_makes_a_page(tmp_path: Path) -> None:
    for stage in STAGES:
        if stage != "ledger":
            assert "</html>" in render(collect(make_run(tmp_path / stage, (stage,))))


def test_an_absent_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such run folder"):
        collect(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("timing.json", '{"rl": "long"}'),
        ("corpus/manifest.json", "[1, 2]"),
        ("eval/rl.json", '{"name": "rl", "pass_at_1": {"mean": 1'),
        ("eval/sft.json", '{"tasks": "many"}'),
        ("rl/ledger/step-000001.parquet", "PAR1 torn"),
    ],
)
def test_a_broken_file_is_named_and_the_rest_is_shown(tmp_path: Path, name: str, text: str) -> None:
    run = make_run(tmp_path / "run", ("pretrain",))
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_text(text)
    data = collect(run)
    assert len(data.problems) == 1
    assert Path(name).parts[0] in data.problems[0]
    assert data.pretrain is not None
    assert "Could not be read" in render(data)


def test_metrics_that_were_not_measured_stay_missing(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "rl" / "metrics.jsonl")
    log.write(0, reward_mean=0.0, k3_live=None)
    log.write(1, reward_mean=float("nan"), k3_live=0.5, loss=0.25)
    data = collect(tmp_path)
    assert data.rl is not None
    assert data.rl.get("reward_mean") == [0.0, None]
    assert data.rl.get("k3_live") == [None, 0.5]
    assert data.rl.get("loss") == [None, 0.25]
    assert data.rl.get("entropy") == [None, None]
    assert (data.headline.delta_ratio, data.headline.tokens_trained, data.headline.k3_live) == (None, None, None)


def test_the_headline_follows_from_the_run(run_dir: Path, data: ReportData) -> None:
    before, after = (json.loads((run_dir / "eval" / f"{name}.json").read_text()) for name in ("sft", "rl"))
    gain = data.headline.gain
    assert gain is not None and gain.paired == paired_difference(before["per_task"], after["per_task"])
    assert gain.points == pytest.approx(after["pass_at_1"]["mean"] - before["pass_at_1"]["mean"])
    rows = [json.loads(line) for line in (run_dir / "rl" / "metrics.jsonl").read_text().splitlines()]
    ratio = sum(row["full_bytes"] for row in rows) / sum(row["delta_bytes"] for row in rows)
    assert data.headline.delta_ratio == pytest.approx(ratio)
    both = sorted(row["k3_replay"] for row in rows if row["k3_live"] is not None)
    assert data.headline.k3_replay == both[len(both) // 2]
    assert data.headline.seconds == pytest.approx(458.4)


def test_the_last_evaluation_counts_as_after_rl(tmp_path: Path) -> None:
    scores = {"sft": (0, 0.2), "rl-20": (20, 0.4), "rl-100": (100, 0.7)}
    for name, (step, mean) in scores.items():
        (tmp_path / "eval").mkdir(exist_ok=True)
        interval = {"mean": mean, "low": mean, "high": mean, "n": 4}
        (tmp_path / "eval" / f"{name}.json").write_text(json.dumps({"step": step, "pass_at_1": interval}))
    data = collect(tmp_path)
    assert [one.name for one in data.evaluations] == ["sft", "rl-20", "rl-100"]
    assert data.headline.gain is not None
    assert (data.headline.gain.points, data.headline.gain.paired) == (pytest.approx(0.5), None)


def test_every_rollout_is_in_the_account_once(run_dir: Path, data: ReportData) -> None:
    """Counted a second time, straight from the files."""
    entries = [entry for path in ledger_files(run_dir / "rl" / "ledger") for entry in read_ledger(path)]
    counted: dict[str, dict[str, int]] = {}
    for entry in entries:
        row = counted.setdefault(entry.disposition.value, {})
        row[entry.rollout.outcome.value] = row.get(entry.rollout.outcome.value, 0) + 1
    account = data.ledger
    assert account is not None and account.counts == counted
    assert account.total == len(entries) == sum(account.by_disposition.values()) == sum(account.by_outcome.values())
    assert {name: sum(row.values()) for name, row in counted.items()} == account.by_disposition
    assert [check.holds for check in account.checks] == [True] * 5


def test_a_rollout_settled_twice_and_a_wrong_count_are_caught(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("ledger",))
    entries = read_ledger(ledger_path(run / "rl" / "ledger", 0))
    write_ledger(ledger_path(run / "rl" / "ledger", STEPS), entries)
    MetricsLog(run / "rl" / "metrics.jsonl").write(0, rollouts_trained=640)
    account = collect(run).ledger
    assert account is not None
    held = {check.what: check.holds for check in account.checks}
    assert held["every attempt was settled once"] is False
    assert held["rollouts trained, as the trainer counted"] is False
    assert held["the dispositions add up"] is True
