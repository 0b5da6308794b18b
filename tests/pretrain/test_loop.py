"""A phase learns, can be killed at any step, and goes on to the very same weights."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from etude.config.pretrain import PhaseConfig, PretrainConfig
from etude.models import next_token_logprobs, weights_of
from etude.observe import MetricsLog, read_metrics
from etude.pretrain.loop import Phase, held_out_loss, run_phase
from etude.pretrain.rows import Rows
from etude.records import UserError
from etude.weights import state_digest
from tests.models.tiny import tiny

PER_STEP, LENGTH = 4, 24
CONFIG = PretrainConfig(dtype="float32", evaluate_every=5, checkpoint_every=5, balance_rate=1e-2)


def counting(count: int, seed: int) -> Rows:
    """Rows in which each token is the one before plus two: easy to learn."""
    start = np.random.default_rng(seed).integers(0, 40, (count, 1))
    ids = ((start + 2 * np.arange(LENGTH)) % 90).astype(np.int32)
    weights = np.ones_like(ids, np.float32)
    weights[:, 0] = 0.0
    return Rows(ids, np.zeros(ids.shape, np.int16), weights)


def phase(steps: int, **changes: object) -> Phase:
    fields = {"tokens": steps * PER_STEP * LENGTH, "lr": 5e-3, "rows_per_step": PER_STEP, **changes}
    return Phase("bulk", PhaseConfig(**fields), counting(20, 0), counting(8, 1), first_step=0)


def digest(model: PreTrainedModel) -> str:
    return state_digest(weights_of(model)).hex()


def train(model: PreTrainedModel, what: Phase, folder: Path, stop_after: float = 2.0) -> None:
    """Run a phase in `folder`; dies (as if killed) when `stop_after` of it is done."""

    def progress(share: float, note: str) -> None:
        if share > stop_after:
            raise KeyboardInterrupt

    def log(step: int | None) -> MetricsLog:
        return MetricsLog(folder / "metrics.jsonl", resume_from=step)

    run_phase(model, what, CONFIG, folder / "bulk.pt", log, progress)


def test_the_loss_falls(tmp_path: Path) -> None:
    train(tiny(), phase(30), tmp_path)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    held_out = [row["held_out_loss"] for row in rows if row["held_out_loss"] is not None]
    assert held_out[0] > 4.0
    assert held_out[-1] < 0.5 * held_out[0]
    assert rows[-1]["step"] == 29 and rows[-1]["tokens"] == 30 * PER_STEP * LENGTH


@pytest.mark.parametrize("killed_at", [0.2, 0.5, 0.6], ids=["before a checkpoint", "at one", "after one"])
def test_a_phase_that_was_killed_ends_with_the_same_bits(tmp_path: Path, killed_at: float) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    for folder in (whole, resumed):
        folder.mkdir()
    model = tiny()
    train(model, phase(16), whole)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), phase(16), resumed, stop_after=killed_at)
    again = tiny()  # a new process starts from the same initial weights
    train(again, phase(16), resumed)
    assert digest(again) == digest(model)  # the router's correction bias among them
    lines = [[row["step"] for row in read_metrics(folder / "metrics.jsonl")] for folder in (whole, resumed)]
    assert lines[0] == lines[1] == [0, 5, 10, 15]
    losses = [[row["loss"] for row in read_metrics(folder / "metrics.jsonl")] for folder in (whole, resumed)]
    assert losses[0] == losses[1]


def test_a_broken_state_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), phase(16), tmp_path, stop_after=0.5)
    state = tmp_path / "bulk.pt"
    for damaged in (b"", b"no state", state.read_bytes()[:-50]):
        state.write_bytes(damaged)
        with pytest.raises(UserError, match=f"{state}: broken checkpoint .*delete it to start the phase again"):
            train(tiny(), phase(16), tmp_path)


def test_a_state_of_another_phase_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), phase(16), tmp_path, stop_after=0.5)
    other = phase(16)
    other.name = "sft"
    model, fresh = tiny(), tmp_path / "fresh"
    fresh.mkdir()
    train(model, other, tmp_path)
    reference = tiny()
    train(reference, phase(16), fresh)
    assert digest(model) == digest(reference)


def test_the_rate_rises_then_falls_along_a_cosine() -> None:
    one = phase(100, lr=1.0, warmup_share=0.1, final_lr_share=0.2)
    assert one.steps == 100
    assert [one.lr(step) for step in range(10)] == pytest.approx([(step + 1) / 10 for step in range(10)])
    for step in range(10, 100):
        assert one.lr(step) == pytest.approx(0.2 + 0.4 * (1 + math.cos(math.pi * (step - 10) / 90)))
    assert one.lr(10) == 1.0 and one.lr(100) == pytest.approx(0.2)


def test_a_phase_of_one_step_has_a_rate_too() -> None:
    one = phase(1, lr=1.0, rows_per_step=10 * PER_STEP)
    assert one.steps == 1
    assert one.lr(0) == 1.0


def test_fault_10_mean_of_means() -> None:
    """Held-out loss is one mean over all weighted tokens, however unevenly passes are filled."""
    model, rows = tiny(), counting(5, 3)
    rows.weights_NS[:4, 4:] = 0.0  # four rows of 3 tokens that count, one of 23
    rows.weights_NS[4, 1:4] = 0.25
    ids, doc = torch.from_numpy(rows.ids_NS).long(), torch.zeros(rows.ids_NS.shape, dtype=torch.long)
    wanted = torch.from_numpy(rows.weights_NS) > 0
    with torch.no_grad():
        logprobs = next_token_logprobs(model, ids, doc, wanted)[0].double().numpy()
    weights = rows.weights_NS[rows.weights_NS > 0]
    expected = -(weights * logprobs).sum() / weights.sum()
    for rows_per_pass in (1, 2, 5):
        assert held_out_loss(model, rows, rows_per_pass) == pytest.approx(expected, rel=1e-5)


def test_nothing_held_out_has_no_loss() -> None:
    assert math.isnan(held_out_loss(tiny(), counting(0, 0), PER_STEP))
