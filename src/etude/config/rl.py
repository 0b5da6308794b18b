"""Reinforcement learning: groups, staleness, loss and optimizer."""

from etude.config.base import Config


class RLConfig(Config):
    """One optimizer step consumes `groups_per_step * group_size` rollouts whose groups have a gradient."""

    steps: int = 60
    """Optimizer steps of the run."""
    group_size: int = 8
    """G: rollouts of one task drawn together."""
    groups_per_step: int = 32
    """Groups with gradient that make a step; groups whose rewards are all equal are refilled."""
    max_staleness: int = 1
    """O: how many versions older than the trainer's the start of a rollout may be when it is trained."""
    lr: float = 1e-4
    """Peak learning rate of AdamW; above 2e-4 the quickstart's model was seen to collapse."""
    warmup_steps: int = 3
    """Steps of linear warm-up."""
    clip_grad: float = 1.0
    """Largest global gradient norm."""
    weight_decay: float = 0.0
    """AdamW weight decay of matrices."""
    importance_cap: float = 2.0
    """Largest importance weight of a token (truncated importance sampling)."""
    kl_beta: float = 0.002
    """Weight of the k1 KL term against the policy that RL started from; 0 leaves the reference model out."""
    tokens_per_rollout: int = 16
    """The loss is divided by this constant times the rollouts of a step, never by the tokens that came."""
    micro_tokens: int = 3072
    """Most tokens, padding included, of one forward and backward pass."""
    shadow_every: int = 5
    """Every that many steps the mismatch is also measured without router replay; 0 is never."""
    temperature: float = 1.0
    """Sampling temperature of rollouts."""
    checkpoint_every: int = 10
    """Steps between checkpoints."""
    shuffle_rewards: bool = False
    """Control experiment: rewards are dealt out at random within the step, so nothing can be learnt."""
    seed: int = 0
    """Seed of task order and sampling."""
