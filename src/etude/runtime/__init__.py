"""Ray: actors, the rollout reconciler, commits and resume; the commands as functions."""

from etude.runtime.reconciler import Batch, Reconciler
from etude.runtime.stages import build_corpus_stage, eval_stage, pretrain_stage, quickstart, rl_stage

__all__ = [
    "Batch",
    "Reconciler",
    "build_corpus_stage",
    "eval_stage",
    "pretrain_stage",
    "quickstart",
    "rl_stage",
]
