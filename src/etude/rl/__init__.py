"""Advantages, loss, batches and the trainer's step."""

from etude.rl.advantages import group_advantages, has_gradient
from etude.rl.batch import MicroBatch, micro_batches
from etude.rl.loss import k3, policy_loss
from etude.rl.mismatch import mismatch
from etude.rl.trainer import Trainer

__all__ = [
    "MicroBatch",
    "Trainer",
    "group_advantages",
    "has_gradient",
    "k3",
    "micro_batches",
    "mismatch",
    "policy_loss",
]
