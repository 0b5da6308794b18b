"""The agent's budget: turns, tokens and when to summarise."""

from etude.config.base import Config


class AgentConfig(Config):
    """Limits of one rollout. A summary is asked for early enough that nothing must ever be thrown away."""

    context: int = 256
    """Tokens of one context window; when the next turn might not fit, the model summarises and goes on in a new one."""
    max_turns: int = 8
    """Tool calls of one rollout, over all its segments; then it is OVERLONG."""
    max_action: int = 24
    """Tokens of one tool call; a longer one is cut and answered with an error."""
    max_observation: int = 40
    """Tokens of one tool's answer; a longer one is cut in the middle."""
    max_malformed: int = 3
    """Calls in a row that are no calls; then the agent has lost the protocol and the rollout is an AGENT_FAULT."""
    max_summary: int = 32
    """Tokens of one self-summary."""
    max_summaries: int = 2
    """Summaries of one rollout; when one more would be needed it is OVERLONG."""
    run_timeout_s: float = 2.0
    """Seconds that a program started by the `run` tool may take."""

    @property
    def reserve(self) -> int:
        """Free tokens below which the agent summarises: one more turn, the request for a summary and the summary.

        An observation is wrapped in three marker tokens, the request is two.
        """
        return self.max_action + self.max_observation + 3 + 2 + self.max_summary
