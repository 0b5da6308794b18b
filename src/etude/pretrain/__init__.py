"""Continued pretraining: a bulk phase on code, then demonstrations."""

from etude.pretrain.demonstrations import write_demonstrations
from etude.pretrain.job import pretrain

__all__ = ["pretrain", "write_demonstrations"]
