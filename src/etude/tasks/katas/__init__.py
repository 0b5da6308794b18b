"""Katas: tiny Python repair tasks, generated without end, on which a small model learns in minutes."""

from etude.tasks.katas.demonstrator import MAX_MOVES, Move, demonstrate
from etude.tasks.katas.evaluate import Call
from etude.tasks.katas.kata import Kata
from etude.tasks.katas.source import KataSource
from etude.tasks.katas.split import Split, normalise, split_of
from etude.tasks.katas.tokens import Edit, FaultKind

__all__ = [
    "MAX_MOVES",
    "Call",
    "Edit",
    "FaultKind",
    "Kata",
    "KataSource",
    "Move",
    "Split",
    "demonstrate",
    "normalise",
    "split_of",
]
