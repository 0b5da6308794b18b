"""Shapes of the models that Étude can build from nothing. A real checkpoint brings its own config.json instead."""

from typing import Literal

from pydantic import Field, model_validator

from etude.config.base import Config


class ModelConfig(Config):
    """A small Mixture-of-Experts decoder in the shape of a published one."""

    shape: Literal["deepseek_v3", "qwen3_moe"] = "deepseek_v3"
    """deepseek_v3: latent attention, sigmoid router with bias. qwen3_moe: grouped queries, softmax router."""
    hidden_size: int = Field(default=128, ge=1)
    """Width of the residual stream."""
    layers: int = Field(default=4, ge=1)
    """Decoder layers, dense ones included."""
    dense_layers: int = Field(default=1, ge=0)
    """How many of the first layers have a dense feed-forward instead of experts (deepseek_v3 only)."""
    heads: int = Field(default=4, ge=1)
    """Attention heads."""
    head_dim: int = Field(default=32, ge=4, multiple_of=4)
    """Width of one head; deepseek_v3 gives half of it to the rotary part: the heads share it, and with a quarter (8) a
    model of this size was half as fast to learn to look back."""
    kv_rank: int = Field(default=64, ge=1)
    """Rank of the key-value latent (deepseek_v3 only)."""
    experts: int = Field(default=8, ge=1)
    """Routed experts a layer."""
    experts_per_token: int = Field(default=2, ge=1)
    """Routed experts that a token uses."""
    expert_size: int = Field(default=64, ge=1)
    """Hidden width of one expert."""
    dense_size: int = Field(default=256, ge=1)
    """Hidden width of the dense feed-forward."""
    max_positions: int = Field(default=512, ge=1)
    """Longest context in tokens."""
    tie_embeddings: bool = True
    """Whether the output projection is the embedding matrix."""
    init_std: float = Field(default=0.07, gt=0)
    """Standard deviation of the initial weights: about 1/sqrt(hidden_size). With 0.02 attention starts out uniform, and
    a model of this size learns half as fast."""

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token = {self.experts_per_token} of only {self.experts} experts")
        if self.shape == "deepseek_v3" and self.dense_layers > self.layers:
            raise ValueError(f"dense_layers = {self.dense_layers} of only {self.layers} layers")
        return self
