"""Continued pretraining: a bulk phase on code, then a short supervised phase on demonstrations."""

from typing import Literal

from pydantic import Field

from etude.config.base import Config
from etude.config.model import ModelConfig


class PhaseConfig(Config):
    """One phase of training."""

    tokens: int = Field(ge=1)
    """Tokens to train on, padding included; rows are repeated in a new order when they run out."""
    lr: float = Field(ge=0)
    """Peak learning rate of AdamW."""
    rows_per_step: int = Field(default=16, ge=1)
    """Packed rows of one optimizer step."""
    warmup_share: float = Field(default=0.05, ge=0, le=1)
    """Share of the steps in which the rate rises linearly; then it falls along a cosine."""
    final_lr_share: float = Field(default=0.1, ge=0, le=1)
    """The rate at the end, as a share of the peak."""
    prompt_weight: float = Field(default=0.0, ge=0)
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
    demonstrations: int = Field(default=12_000, ge=1)
    """Demonstrations to write, one for each training task."""
    weight_decay: float = Field(default=0.05, ge=0)
    """AdamW weight decay of matrices."""
    clip_grad: float = Field(default=1.0, gt=0)
    """Largest global gradient norm."""
    balance_rate: float = Field(default=1e-3, ge=0)
    """Step of the router's correction bias towards equal load of experts."""
    evaluate_every: int = Field(default=50, ge=1)
    """Steps between measurements of the held-out loss."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints."""
    threads: int = Field(default=2, ge=1)
    """CPU threads."""
    seed: int = Field(default=0, ge=0)
    """Seed of initial weights, order and demonstrations."""
