"""Reinforcement learning: groups, staleness, loss and optimizer."""

from pydantic import Field

from etude.config.base import Config


class RLConfig(Config):
    """One optimizer step consumes `groups_per_step * group_size` rollouts whose groups have a gradient."""

    steps: int = Field(default=60, ge=1)
    """Optimizer steps of the run."""
    group_size: int = Field(default=8, ge=2, le=64)
    """G: rollouts of one task drawn together."""
    groups_per_step: int = Field(default=32, ge=1)
    """Groups with gradient that make a step; groups whose rewards are all equal are refilled."""
    max_staleness: int = Field(default=1, ge=0)
    """O: how many versions older than the trainer's the start of a rollout may be when it is trained."""
    lr: float = Field(default=1e-4, ge=0)
    """Peak learning rate of AdamW; at 5e-4 the quickstart's model only learnt to retry."""
    warmup_steps: int = Field(default=3, ge=0)
    """Steps of linear warm-up."""
    clip_grad: float = Field(default=1.0, gt=0)
    """Largest global gradient norm."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW weight decay of matrices."""
    importance_cap: float = Field(default=2.0, gt=0)
    """Largest importance weight of a token (truncated importance sampling)."""
    kl_beta: float = Field(default=0.002, ge=0)
    """Weight of the k1 KL term against the policy that RL started from; 0 leaves the reference model out."""
    tokens_per_rollout: int = Field(default=16, ge=1)
    """The loss is divided by this constant times the rollouts of a step, never by the tokens that came."""
    micro_tokens: int = Field(default=3072, ge=1)
    """Most tokens, padding included, of one forward and backward pass."""
    shadow_every: int = Field(default=5, ge=0)
    """Every that many steps the mismatch is also measured without router replay; 0 is never."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of rollouts."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    shuffle_rewards: bool = False
    """Control experiment: rewards are dealt out at random within the step, so nothing can be learnt."""
    seed: int = Field(default=0, ge=0)
    """Seed of task order and sampling."""
