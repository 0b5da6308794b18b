"""Shapes of the models that Étude can build from nothing. A real checkpoint brings its own config.json instead."""

from typing import Literal

from etude.config.base import Config


class ModelConfig(Config):
    """A small Mixture-of-Experts decoder in the shape of a published one."""

    shape: Literal["deepseek_v3", "qwen3_moe"] = "deepseek_v3"
    """deepseek_v3: latent attention, sigmoid router with bias. qwen3_moe: grouped queries, softmax router."""
    hidden_size: int = 128
    """Width of the residual stream."""
    layers: int = 4
    """Decoder layers, dense ones included."""
    dense_layers: int = 1
    """How many of the first layers have a dense feed-forward instead of experts (deepseek_v3 only)."""
    heads: int = 4
    """Attention heads."""
    head_dim: int = 32
    """Width of one head; deepseek_v3 gives half of it to the rotary part: the heads share it, and with a quarter (8) a
    model of this size was half as fast to learn to look back."""
    kv_rank: int = 64
    """Rank of the key-value latent (deepseek_v3 only)."""
    experts: int = 8
    """Routed experts a layer."""
    experts_per_token: int = 2
    """Routed experts that a token uses."""
    expert_size: int = 64
    """Hidden width of one expert."""
    dense_size: int = 256
    """Hidden width of the dense feed-forward."""
    max_positions: int = 512
    """Longest context in tokens."""
    tie_embeddings: bool = True
    """Whether the output projection is the embedding matrix."""
    init_std: float = 0.07
    """Standard deviation of the initial weights: about 1/sqrt(hidden_size). With 0.02 attention starts out uniform, and
    a model of this size learns half as fast."""
