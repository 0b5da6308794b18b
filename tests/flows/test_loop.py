"""The whole loop at its smallest, and again after a kill: nothing lost, nothing done twice."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from etude.config import load_config
from etude.config.jobs import RLJob
from etude.observe import read_metrics
from etude.records import UserError
from etude.records.ledger import Disposition
from etude.report import write_report
from etude.runtime import quickstart, rl_stage
from tests.flows.ledgers import check_account, digests_of_chain, entries_by_step

STEPS, BATCH = 3, 4


def test_every_stage_leaves_what_the_next_one_reads(tiny_run: Path) -> None:
    run = tiny_run / "run"
    for folder in ("corpus/tokenizer", "pretrain/bulk", "pretrain/sft", "rl/model"):
        assert (run / folder / "tokenizer.json").is_file()
    results = {path.stem: json.loads(path.read_text()) for path in (run / "eval").glob("*.json")}
    assert results.keys() == {"bulk", "sft", "rl"}
    assert len({result["digest"] for result in results.values()}) == 3
    assert results["rl"]["digest"] == digests_of_chain(run)[STEPS]
    for result in results.values():
        assert (result["tasks"], len(result["per_task"])) == (4, 4)
        assert sum(result["outcomes"].values()) == 4
        assert result["mismatch"]["k3_replay"] < 1e-3
    assert json.loads((run / "timing.json").read_text()).keys() == {"corpus", "pretrain", "rl", "eval"}
    page = write_report(run)
    assert page == run / "report.html" and page.stat().st_size > 10_000


def test_the_ledger_accounts_for_every_rollout(tiny_run: Path) -> None:
    check_account(tiny_run / "run", STEPS, BATCH)
    for entries in entries_by_step(tiny_run / "run").values():
        assert len({entry.rollout.rollout_id for entry in entries}) == len(entries)
        advantages = [e.advantage for e in entries if e.disposition is Disposition.TRAINED]
        assert None not in advantages


def test_versions_advance_one_by_one_and_are_the_ones_computed_with(tiny_run: Path) -> None:
    rows = read_metrics(tiny_run / "run" / "rl" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(STEPS))
    for row in rows:
        assert row["canary_gap"] == 0
        assert row["coverage"] == 1
        assert row["changed_share"] > 0.5  # weight decay moves all but what is zero
        assert row["k3_replay"] is None or row["k3_replay"] < 1e-3
        assert row["rollouts_trained"] == BATCH and row["groups_trained"] == 2
        assert row["staleness_max"] <= 1
    assert rows[0]["k3_replay"] is not None  # the first batch was sampled by the very weights that it trains


def test_a_finished_run_does_nothing_when_it_is_run_again(tiny_run: Path) -> None:
    run = tiny_run / "run"
    watched = [
        path for path in run.rglob("*") if path.is_file() and path.suffix in (".safetensors", ".parquet", ".json")
    ]
    before = {path: path.stat().st_mtime_ns for path in watched if path.name != "timing.json"}
    started = time.perf_counter()
    again = quickstart(tiny_run / "configs")
    assert time.perf_counter() - started < 10
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [result.label for result in again.evaluations] == ["before SFT", "before RL", "after RL"]


def marked(mark: str) -> list[str]:
    """Command lines of living processes that inherited this mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
        except OSError:  # it ended meanwhile, or is a zombie
            continue
    return found


def wait_for(condition: object, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def test_promise_7_killed_at_any_moment(tiny_run: Path, tmp_path: Path) -> None:
    """A run is killed with all its processes after its first commit, between two commits, and goes on."""
    steps, mark = 12, uuid.uuid4().hex
    config = tiny_run / "configs" / "rl.toml"
    overrides = [f"run={tmp_path}/run", f"model={tiny_run}/run/pretrain/sft"]
    overrides += [f"rl.steps={steps}", "rl.checkpoint_every=5"]
    command = [sys.executable, "-c", "from etude.cli import main; main()", "rl", str(config)]
    command += [word for override in overrides for word in ("-o", override)]
    environment = os.environ | {"ETUDE_TEST": mark, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    rl = tmp_path / "run" / "rl"
    try:
        metrics = rl / "metrics.jsonl"
        wait_for(lambda: process.poll() is not None or len(read_metrics(metrics)) >= 6, 90, "a step after a commit")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert [path.name for path in sorted((rl / "checkpoints").glob("step-*"))] == ["step-000005"]
    undone = read_metrics(metrics)[5:]
    assert undone, "the kill came too early to undo anything"
    wait_for(lambda: not marked(mark), 60, f"the end of {marked(mark)}")

    assert rl_stage(load_config(RLJob, config, overrides)) == rl / "model"
    rows = read_metrics(metrics)
    assert [row["step"] for row in rows] == list(range(steps))
    assert all(row["canary_gap"] == 0 for row in rows)
    assert rows[5]["time"] > undone[-1]["time"]  # done again
    check_account(tmp_path / "run", steps, BATCH)


def test_a_broken_commit_is_told_in_one_line_and_not_started_over(tiny_run: Path, tmp_path: Path) -> None:
    """The error crosses from the trainer's process to the driver's as what it was."""
    overrides = [f"run={tmp_path}/run", f"model={tiny_run}/run/pretrain/sft"]
    broken = tmp_path / "run" / "rl" / "checkpoints" / "step-000002"
    broken.mkdir(parents=True)
    (broken / "state.json").write_text('{"digest": "00", "reconciler": {"version": 2, "low": 4, "above": []}}')
    (broken / "trainer.pt").write_bytes(b"torn")
    with pytest.raises(UserError, match=f"^{broken}/trainer.pt: broken checkpoint .*delete") as caught:
        rl_stage(load_config(RLJob, tiny_run / "configs" / "rl.toml", overrides))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "rl" / "model").exists()
