"""What every engine speaks: token ids in; ids, logprobs, routes and version spans out.

Invariant: an engine never sees or returns text. What it read and wrote is in its log, so that a ledger can be compared
with it token by token.
"""

from enum import StrEnum
from typing import Protocol

import msgspec
import numpy as np

from etude.records import VersionSpan
from etude.records.rollout import Array


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # the stop token was sampled; it is part of the ids
    LENGTH = "length"  # max_tokens or the context was used up


class Request(msgspec.Struct, frozen=True):
    """Continue `ids_T`.

    session: requests of one session reuse its keys and values, as far as their ids agree.
    seed: equal seeds, ids and weights give equal samples, whatever else is in the batch.
    routes_from: the caller already holds the routes of rows before this one.
    """

    session: str
    ids_T: Array
    max_tokens: int
    stop_id: int
    temperature: float = 1.0
    seed: int = 0
    routes_from: int = 0


class Generation(msgspec.Struct, frozen=True):
    """The answer. N sampled tokens; R = len(ids_T) + N - 1 - routes_from rows of routes.

    ids_N: int32. logprobs_N: float32, of the tempered sampling distribution. routes_RLK: int16, row r belongs to token
    routes_from + r of prompt plus answer; -1 where no pass was seen. spans: relative to the answer, covering [0, N).
    """

    session: str
    ids_N: Array
    logprobs_N: Array
    routes_RLK: Array
    spans: tuple[VersionSpan, ...]
    finish: Finish


class Engine(Protocol):
    """An engine as agents see it."""

    async def generate(self, request: Request) -> Generation:
        """Sample a continuation. Raises UserError for a request that can never be served, InfraError for trouble."""
        ...

    async def release(self, session: str) -> None:
        """The session is over: its keys and values may go."""
        ...


class EngineLog:
    """The engine's own account of what it read and wrote: the other half of promise 1."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    def add(self, session: str, read: np.ndarray, wrote: np.ndarray) -> None:
        """One finished request: the ids it was given and the ids it sampled."""
        self.entries.append((session, tuple(read.tolist()), tuple(wrote.tolist())))
