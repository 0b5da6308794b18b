"""Continued pretraining: a bulk phase on code, then a short supervised phase on demonstrations."""

from typing import Literal

from etude.config.base import Config
from etude.config.model import ModelConfig


class PhaseConfig(Config):
    """One phase of training."""

    tokens: int
    """Tokens to train on, padding included; rows are repeated in a new order when they run out."""
    lr: float
    """Peak learning rate of AdamW."""
    rows_per_step: int = 16
    """Packed rows of one optimizer step."""
    warmup_share: float = 0.05
    """Share of the steps in which the rate rises linearly; then it falls along a cosine."""
    final_lr_share: float = 0.1
    """The rate at the end, as a share of the peak."""
    prompt_weight: float = 0.0
    """Weight in the loss of demonstrated tokens that the agent reads but does not write; those it writes have 1."""


class PretrainConfig(Config):
    """Where the model comes from, and the two phases."""

    init: str | None = None
    """Hugging Face folder to continue from; None builds `model` from nothing."""
    model: ModelConfig = ModelConfig()
    """Shape of a model built from nothing."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of weights and activations; bfloat16 keeps fp32 master weights in the optimizer."""
    bulk: PhaseConfig = PhaseConfig(tokens=1_000_000, lr=2e-3)
    """Next-token prediction on the corpus."""
    sft: PhaseConfig = PhaseConfig(tokens=2_000_000, lr=2e-3)
    """Demonstrations."""
    demonstrations: int = 12_000
    """Demonstrations to write, one for each training task."""
    weight_decay: float = 0.05
    """AdamW weight decay of matrices."""
    clip_grad: float = 1.0
    """Largest global gradient norm."""
    balance_rate: float = 1e-3
    """Step of the router's correction bias towards equal load of experts."""
    evaluate_every: int = 50
    """Steps between measurements of the held-out loss."""
    checkpoint_every: int = 100
    """Steps between checkpoints."""
    threads: int = 2
    """CPU threads."""
    seed: int = 0
    """Seed of initial weights, order and demonstrations."""
