"""The agent's budget: turns, tokens and when to summarise."""

from pydantic import Field, model_validator

from etude.config.base import Config


class AgentConfig(Config):
    """Limits of one rollout. A summary is asked for early enough that nothing must ever be thrown away."""

    context: int = Field(default=256, ge=1)
    """Tokens of one context window; when the next turn might not fit, the model summarises and goes on in a new one."""
    max_turns: int = Field(default=8, ge=1)
    """Tool calls of one rollout, over all its segments; then it is OVERLONG."""
    max_action: int = Field(default=24, ge=1)
    """Tokens of one tool call; a longer one is cut and answered with an error."""
    max_observation: int = Field(default=40, ge=1)
    """Tokens of one tool's answer; a longer one is cut in the middle."""
    max_malformed: int = Field(default=3, ge=1)
    """Calls in a row that are no calls; then the agent has lost the protocol and the rollout is an AGENT_FAULT."""
    max_summary: int = Field(default=32, ge=1)
    """Tokens of one self-summary."""
    max_summaries: int = Field(default=2, ge=0)
    """Summaries of one rollout; when one more would be needed it is OVERLONG."""
    run_timeout_s: float = Field(default=2.0, gt=0)
    """Seconds that a program started by the `run` tool may take."""

    @model_validator(mode="after")
    def _room(self) -> "AgentConfig":
        if self.context <= self.reserve:
            raise ValueError(f"context = {self.context} holds no turn, request and summary of {self.reserve} tokens")
        return self

    @property
    def reserve(self) -> int:
        """Free tokens below which the agent summarises: one more turn, the request for a summary and the summary.

        An observation is wrapped in three marker tokens, the request is two.
        """
        return self.max_action + self.max_observation + 3 + 2 + self.max_summary
