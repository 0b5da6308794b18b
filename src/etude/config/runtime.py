"""Ray actors and their threads."""

from pydantic import Field

from etude.config.base import Config


class RuntimeConfig(Config):
    """Embedded by default; `address` joins a cluster instead."""

    address: str | None = None
    """Ray address; None starts an embedded Ray in this process."""
    trainer_threads: int = Field(default=1, ge=1)
    """CPU threads of the trainer."""
    workers: int = Field(default=1, ge=1)
    """Rollout workers; each drives many rollouts at once."""
    max_in_flight: int = Field(default=320, ge=1)
    """Rollouts running at once, over all workers."""
    group_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds after which a group that has not come back is run again."""
    engine_log: bool = False
    """Keep the engine's own account of every token it read and wrote; it grows with the run."""
