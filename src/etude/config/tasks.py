"""The built-in task family and the demonstrator that writes its first traces."""

from typing import Annotated

from pydantic import Field, model_validator

from etude.config.base import Config

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class KatasConfig(Config):
    """Which katas are drawn. The split into train and held-out does not depend on it."""

    seed: int = 0
    """Seed of the stream of katas; another seed gives other katas of the same kind."""
    tiers: tuple[float, float, float, float] = (0.4, 0.3, 0.2, 0.1)
    """Relative weights of tiers 1 to 4; zero leaves a tier out."""
    tests_per_task: int = Field(default=8, ge=4, le=32)
    """Hidden test calls of one kata, the shown examples among them."""
    examples: int = Field(default=1, ge=1, le=2)
    """Failing calls shown in the prompt; katas that hide a clause show one more."""

    @model_validator(mode="after")
    def _weights(self) -> "KatasConfig":
        if min(self.tiers) < 0 or sum(self.tiers) <= 0:
            raise ValueError(f"tiers must be weights >= 0 with a positive sum, got {list(self.tiers)}")
        return self


class DemonstratorConfig(Config):
    """How good the scripted demonstrator is. It is imperfect on purpose: reinforcement learning needs room to grow."""

    right: Probability = 0.4
    """Probability that an edit is the right one; else it is one of many plausible wrong ones."""
    run: Probability = 0.7
    """Probability that the examples are run after the first edit."""
    retry: Probability = 0.5
    """Probability that a failing run is answered by undoing the edit and trying another."""
    view: Probability = 0.1
    """Probability that a trace starts by viewing the file."""
