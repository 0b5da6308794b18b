"""Metrics and progress: JSON lines for programs, bars for people. Every room may use it."""

from etude.observe.metrics import MetricsLog, read_metrics
from etude.observe.progress import progress

__all__ = ["MetricsLog", "progress", "read_metrics"]
