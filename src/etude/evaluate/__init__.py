"""Measuring checkpoints. The runner loads models: import `etude.evaluate.job` where one is to be run."""

from etude.evaluate.stats import Interval, bootstrap_mean, paired_difference, wilson

__all__ = ["Interval", "bootstrap_mean", "paired_difference", "wilson"]
