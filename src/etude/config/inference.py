"""The embedded engine's limits."""

from etude.config.base import Config


class EngineConfig(Config):
    """Sizes of the local engine. Memory for keys and values is slots * context * bytes per token of the model."""

    slots: int = 320
    """Sessions whose keys and values are kept at once; further requests wait."""
    context: int = 256
    """Longest session in tokens, prompt included."""
    prefill_tokens: int = 4096
    """Most prompt tokens (padding included) of one forward pass, so that decoding is never held up for long."""
    threads: int = 1
    """CPU threads of the engine's process."""
