"""Evaluation on held-out tasks."""

from pydantic import Field

from etude.config.base import Config


class CheckpointConfig(Config):
    """One model to measure."""

    name: str
    """Of the result's file, RUN/eval/NAME.json."""
    label: str
    """What people call it."""
    folder: str
    """Hugging Face folder within the run."""


class EvaluateConfig(Config):
    """How a checkpoint is measured."""

    tasks: int = Field(default=256, ge=1)
    """Held-out tasks, the first of the held-out stream."""
    samples: int = Field(default=1, ge=1)
    """Attempts at each task; pass@1 is the mean over them, its interval is taken over tasks."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 takes the most likely token."""
    in_flight: int = Field(default=128, ge=1)
    """Rollouts at once."""
    threads: int = Field(default=2, ge=1)
    """CPU threads of the engine."""
    seed: int = Field(default=1234, ge=0)
    """Seed of sampling."""
    checkpoints: tuple[CheckpointConfig, ...] = (
        CheckpointConfig(name="bulk", label="before SFT", folder="pretrain/bulk"),
        CheckpointConfig(name="sft", label="before RL", folder="pretrain/sft"),
        CheckpointConfig(name="rl", label="after RL", folder="rl/model"),
    )
    """What to measure, in this order; folders that are not there are left out."""
