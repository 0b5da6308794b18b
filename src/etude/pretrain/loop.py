"""One phase of pretraining: rows in, a better model and its measurements out.

Invariant: the state after step S depends on the configuration, the rows and S alone. A phase that was killed goes on
from its last checkpoint through the same rows in the same order.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from etude.config.pretrain import PhaseConfig, PretrainConfig
from etude.models import MasterAdamW, RouterTap, balance_experts, next_token_logprobs
from etude.observe import MetricsLog
from etude.pretrain.checkpoint import load_state, save_state
from etude.pretrain.rows import Rows, shuffled


@dataclass
class Phase:
    """What one phase needs. `first_step` numbers its steps within the whole run, for the log."""

    name: str
    config: PhaseConfig
    rows: Rows
    held_out: Rows
    first_step: int

    @property
    def steps(self) -> int:
        """Optimizer steps that consume the phase's tokens."""
        return max(1, self.config.tokens // (self.config.rows_per_step * self.rows.ids_NS.shape[1]))

    def lr(self, step: int) -> float:
        """Linear warm-up, then a cosine down to the final share."""
        warmup = max(1, int(self.steps * self.config.warmup_share))
        if step < warmup:
            return self.config.lr * (step + 1) / warmup
        share = (step - warmup) / max(1, self.steps - warmup)
        floor = self.config.final_lr_share
        return self.config.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * share)))


def run_phase(
    model: PreTrainedModel,
    phase: Phase,
    config: PretrainConfig,
    state_file: Path,
    log: Callable[[int | None], MetricsLog],
    on_progress: Callable[[float, str], None],
) -> None:
    """Train `model` in place. `log(step)` opens the metrics with the lines from `step` on dropped."""
    optimizer = MasterAdamW(model, betas=(0.9, 0.95), weight_decay=config.weight_decay)
    tap = RouterTap(model)
    start = load_state(state_file, phase.name, model, optimizer)
    metrics = log(phase.first_step + start)
    order = shuffled(len(phase.rows), config.seed, phase.config.rows_per_step, start)
    model.train()
    began, done_tokens = time.perf_counter(), 0
    for step in range(start, phase.steps):
        rows = phase.rows.take(next(order))
        loss = _train_step(model, optimizer, tap, rows, phase.lr(step), config)
        done_tokens += rows.ids_NS.size
        rate = done_tokens / (time.perf_counter() - began)
        last = step + 1 == phase.steps
        measure = last or step % config.evaluate_every == 0
        held_out = held_out_loss(model, phase.held_out, phase.config.rows_per_step) if measure else None
        if measure or step % 10 == 0:
            metrics.write(
                phase.first_step + step, phase=phase.name, loss=loss, held_out_loss=held_out, lr=phase.lr(step),
                tokens=(step + 1) * rows.ids_NS.size, tokens_per_s=rate,
            )  # fmt: skip
        on_progress((step + 1) / phase.steps, f"loss {loss:.2f}, {rate:,.0f} tokens/s")
        if last or (step + 1) % config.checkpoint_every == 0:
            save_state(state_file, phase.name, step + 1, model, optimizer)


def _train_step(
    model: PreTrainedModel, optimizer: MasterAdamW, tap: RouterTap, rows: Rows, lr: float, config: PretrainConfig
) -> float:
    with tap.record() as routes:
        logprobs_N, weights_N = _logprobs(model, rows)
    loss = -(weights_N * logprobs_N).sum() / weights_N.sum()
    loss.backward()
    optimizer.accumulate()
    optimizer.step(lr, config.clip_grad)
    if routes:
        real = torch.from_numpy(rows.doc_NS.reshape(-1) >= 0)
        balance_experts(tap.routers, torch.stack(routes, 1)[real], config.balance_rate)
    return float(loss.detach())


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, rows: Rows, rows_per_pass: int) -> float:
    """Weighted mean negative log-likelihood, in nats. Sums first, one division; NaN when nothing was held out."""
    model.eval()
    total, count = 0.0, 0.0
    for start in range(0, len(rows), rows_per_pass):
        logprobs_N, weights_N = _logprobs(model, rows.take(np.arange(start, min(start + rows_per_pass, len(rows)))))
        total -= float((weights_N * logprobs_N).double().sum())
        count += float(weights_N.sum())
    model.train()
    return total / count if count else math.nan


def _logprobs(model: PreTrainedModel, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the tokens that count, and what they weigh."""
    weights_BT = torch.from_numpy(rows.weights_NS)
    wanted_BT = weights_BT > 0
    ids_BT, doc_BT = torch.from_numpy(rows.ids_NS).long(), torch.from_numpy(rows.doc_NS).long()
    return next_token_logprobs(model, ids_BT, doc_BT, wanted_BT)[0], weights_BT[wanted_BT]
