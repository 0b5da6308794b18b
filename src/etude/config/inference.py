"""The embedded engine's limits."""

from pydantic import Field

from etude.config.base import Config


class EngineConfig(Config):
    """Sizes of the local engine. Memory for keys and values is slots * context * bytes per token of the model."""

    slots: int = Field(default=320, ge=1)
    """Sessions whose keys and values are kept at once; further requests wait."""
    context: int = Field(default=256, ge=2)
    """Longest session in tokens, prompt included."""
    prefill_tokens: int = Field(default=4096, ge=1)
    """Most prompt tokens (padding included) of one forward pass, so that decoding is never held up for long."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of the engine's process."""
