"""Bookkeeping of sessions and running requests: plain numpy, no model."""

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from etude.inference.engine import Request
from etude.records import MISSING_ROUTE, PolicyVersion, VersionSpan


@dataclass(eq=False)
class Running:
    """A request that holds a slot.

    length: tokens of the session so far. cached: of these, how many are in the cache.
    version_starts: (index within the answer, version) whenever the weights changed.
    """

    request: Request
    slot: int
    length: int
    cached: int
    uniforms: np.ndarray
    version_starts: list[tuple[int, PolicyVersion]] = field(default_factory=list)

    @property
    def sampled(self) -> int:
        return self.length - len(self.request.ids_T)

    def spans(self) -> tuple[VersionSpan, ...]:
        """Version spans of the answer, from the points where the weights changed."""
        ends = [start for start, _ in self.version_starts[1:]] + [self.sampled]
        return tuple(
            VersionSpan(start, end, version)
            for (start, version), end in zip(self.version_starts, ends, strict=True)
            if end > start
        )


class Slots:
    """Which session owns which slot; ids, logprobs and routes of every slot.

    Invariant: a slot belongs to one session or to none. `idle` orders the sessions that nobody is running by last use.
    """

    def __init__(self, slots: int, context: int, n_layers: int, top_k: int) -> None:
        self.context = context
        self.ids_SC = np.zeros((slots, context), np.int32)
        self.logprobs_SC = np.full((slots, context), np.nan, np.float32)
        self.routes_SCLK = np.full((slots, context, n_layers, top_k), MISSING_ROUTE, np.int16)
        self.cached_S = np.zeros(slots, np.int64)
        self.prompt_S: list[tuple[PolicyVersion, bytes] | None] = [None] * slots
        self._free = list(range(slots))[::-1]
        self._owner: dict[str, int] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._by_prompt: dict[tuple[PolicyVersion, bytes], int] = {}

    def take(self, session: str) -> int | None:
        """The slot of `session`, a free one, or the least recently used idle one; None when all are running."""
        self._idle.pop(session, None)
        if session not in self._owner:
            if not self._free:
                if not self._idle:
                    return None
                self.drop(next(iter(self._idle)))
            self._owner[session] = self._free.pop()
        return self._owner[session]

    def rest(self, session: str) -> None:
        """The session keeps its slot but may lose it."""
        self._idle[session] = None

    def drop(self, session: str) -> None:
        """The session is over."""
        self._idle.pop(session, None)
        slot = self._owner.pop(session, None)
        if slot is not None:
            self.cached_S[slot] = 0
            self.routes_SCLK[slot] = MISSING_ROUTE
            self.set_prompt(slot, None)
            self._free.append(slot)

    def set_prompt(self, slot: int, prompt: tuple[PolicyVersion, bytes] | None) -> None:
        """The slot's rows of `prompt` were computed by one version and may be copied for equal prompts."""
        old, self.prompt_S[slot] = self.prompt_S[slot], prompt
        if old is not None and self._by_prompt.get(old) == slot:
            del self._by_prompt[old]
        if prompt is not None:
            self._by_prompt[prompt] = slot

    def overwrite(self, slot: int, start: int) -> None:
        """Rows from `start` on get other tokens: a prompt that reaches beyond them is no longer held here."""
        held = self.prompt_S[slot]
        if held is not None and len(held[1]) // self.ids_SC.itemsize - 1 > start:  # a copy leaves the last token out
            self.set_prompt(slot, None)

    def with_prompt(self, prompt: tuple[PolicyVersion, bytes]) -> int | None:
        """A slot that holds this prompt, computed by this version."""
        return self._by_prompt.get(prompt)

    def agreeing(self, slot: int, ids_T: np.ndarray) -> int:
        """How many leading tokens of `ids_T` the slot's cache holds; at most len - 1: the last is always read."""
        most = min(int(self.cached_S[slot]), len(ids_T) - 1)
        differs = np.nonzero(self.ids_SC[slot, :most] != ids_T[:most])[0]
        return int(differs[0]) if len(differs) else most
