"""The trainer's step: rollouts in, one optimizer update and its measurements out. A plain class; no Ray, no I/O.

Invariant: every trained token is scored under the experts that produced it (router replay), in every pass with
gradients; the reference model routes for itself.
"""

import copy
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from etude.config.rl import RLConfig
from etude.models import MasterAdamW, RouterTap, next_token_logprobs
from etude.records import Rollout, UserError
from etude.rl.batch import MicroBatch, micro_batches
from etude.rl.loss import k3, policy_loss


@dataclass
class _Sums:
    """What one step adds up over its micro-batches."""

    loss: float = 0.0
    needed_rows: int = 0
    captured_rows: int = 0
    tokens: int = 0
    parts: dict[str, list[Tensor]] = field(default_factory=dict)

    def keep(self, **vectors: Tensor) -> None:
        for name, vector in vectors.items():
            self.parts.setdefault(name, []).append(vector.detach())

    def joined(self, name: str) -> Tensor:
        return torch.cat(self.parts[name]) if name in self.parts else torch.empty(0)


class Trainer:
    """Holds the policy, its optimizer and the frozen reference. `step` counts finished optimizer steps."""

    def __init__(self, model: PreTrainedModel, config: RLConfig) -> None:
        self.config = config
        self.reference = copy.deepcopy(model).eval().requires_grad_(False) if config.kl_beta else None
        self.model = model.train()
        self.tap = RouterTap(model)
        self.optimizer = MasterAdamW(model, betas=(0.9, 0.95), weight_decay=config.weight_decay)
        self.step = 0

    def train(self, rollouts: Sequence[Rollout], advantages: Mapping[str, float]) -> dict[str, float]:
        """One update from whole groups. Returns the step's metrics; see docs/rl.md for each."""
        started = time.perf_counter()
        normaliser = len(rollouts) * self.config.tokens_per_rollout
        shadow = bool(self.config.shadow_every) and self.step % self.config.shadow_every == 0
        sums = _Sums()
        for batch in micro_batches(rollouts, advantages, self.config.micro_tokens):
            self._accumulate(batch, normaliser, shadow, sums)
        lr = self.config.lr * min(1.0, (self.step + 1) / max(1, self.config.warmup_steps))
        grad_norm = self.optimizer.step(lr, self.config.clip_grad)
        metrics = self._metrics(sums) | {"grad_norm": grad_norm, "lr": lr, "train_s": time.perf_counter() - started}
        self.step += 1
        return metrics

    def _accumulate(self, batch: MicroBatch, normaliser: float, shadow: bool, sums: _Sums) -> None:
        inputs = (batch.ids_BT, batch.doc_BT, batch.sampled_BT, self.config.temperature, batch.trunk_B)
        with self.tap.replay(batch.routes_BTLK.flatten(0, 1)):
            logprobs_N, entropy_N = next_token_logprobs(self.model, *inputs)
        with torch.no_grad():
            reference_N = next_token_logprobs(self.reference, *inputs)[0] if self.reference is not None else None
            if shadow:
                live_N, _ = next_token_logprobs(self.model, *inputs)
                sums.keep(live_k3=k3(live_N, batch.sampler_logprobs_N))
        terms = policy_loss(
            logprobs_N,
            batch.sampler_logprobs_N,
            reference_N,
            batch.advantages_N,
            normaliser,
            self.config.importance_cap,
            self.config.kl_beta,
        )
        terms.loss.backward()
        self.optimizer.accumulate()
        sums.loss += float(terms.loss.detach())
        sums.tokens += len(logprobs_N)
        sums.needed_rows += batch.needed_rows
        sums.captured_rows += batch.captured_rows
        gap_N = logprobs_N.detach() - batch.sampler_logprobs_N
        sums.keep(k3=k3(logprobs_N.detach(), batch.sampler_logprobs_N), gap=gap_N.abs(), steps=batch.steps_N)
        sums.keep(entropy=entropy_N, weights=terms.weights_N)
        if reference_N is not None:
            sums.keep(kl=terms.kl_N)

    def _metrics(self, sums: _Sums) -> dict[str, float]:
        """Means over sampled tokens. The mismatch is taken over tokens that these very weights sampled: older ones
        differ by what was learnt since, which is staleness, not numerics. NaN where there is no such token."""
        steps_N = sums.joined("steps")
        same_N = steps_N == self.step
        lag_N = (self.step - steps_N).double()
        return {
            "loss": sums.loss,
            "kl_k1": _mean(sums.joined("kl")),
            "entropy": _mean(sums.joined("entropy")),
            "k3_replay": _mean(sums.joined("k3")[same_N]),
            "k3_live": _mean(sums.joined("live_k3")[same_N]) if "live_k3" in sums.parts else float("nan"),
            "k3_with_staleness": _mean(sums.joined("k3")),
            "logp_gap_p99": _quantile(sums.joined("gap")[same_N], 0.99),
            "ratio_clipped": _mean((sums.joined("weights") >= self.config.importance_cap).double()),
            "coverage": sums.captured_rows / max(1, sums.needed_rows),
            "staleness_mean": _mean(lag_N),
            "staleness_max": float(lag_N.max()),
            "tokens_trained": sums.tokens,
        }

    def save(self, file: Path) -> None:
        """Write all that a resumed trainer needs besides the reference model."""
        buffer = io.BytesIO()  # torch's own writer tells of a full disk as "unexpected pos 576 vs 534"
        torch.save({"step": self.step, "optimizer": self.optimizer.state_dict()}, buffer)
        file.write_bytes(buffer.getbuffer())

    def load(self, file: Path) -> None:
        """Restore what `save` wrote, weights included. Raises UserError for a file that is not one."""
        try:
            state = torch.load(file, weights_only=True)
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]
        except Exception as error:  # torch, pickle and zip each have their own errors for a damaged file
            raise UserError(
                f"{file}: broken checkpoint ({type(error).__name__}); delete its folder to go on from the one before"
            ) from error


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else float("nan")


def _quantile(values: Tensor, q: float) -> float:
    return float(np.quantile(values.numpy(), q)) if len(values) else float("nan")
