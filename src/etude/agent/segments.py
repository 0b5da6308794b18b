"""Growing one segment, token by token, as the engine and the harness write it.

Invariant: what was appended is never changed, and a route row that was captured first is kept: a later pass over the
same token (after an eviction, under newer weights) does not overwrite it.
"""

import numpy as np

from etude.inference.engine import Generation
from etude.records import MISSING_ROUTE, Origin, Segment, VersionSpan


class SegmentBuilder:
    """Collects the tokens of one context window."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._origin: list[int] = []
        self._logprob: list[float] = []
        self._routes: list[np.ndarray] = []
        self._spans: list[VersionSpan] = []

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids_T(self) -> np.ndarray:
        """What the engine is asked to continue."""
        return np.array(self._ids, np.int32)

    @property
    def routes_held(self) -> int:
        """How many leading tokens have their routes."""
        return len(self._routes)

    def add(self, ids: list[int], origin: Origin) -> None:
        """Append tokens that the harness wrote."""
        assert origin is not Origin.SAMPLED, "sampled tokens come from a generation"
        self._ids += ids
        self._origin += [origin] * len(ids)
        self._logprob += [float("nan")] * len(ids)

    def add_sampled(self, generation: Generation) -> None:
        """Append what the policy sampled, with its logprobs, routes and versions. Raises ValueError on a mismatch."""
        start, count = len(self._ids), len(generation.ids_N)
        expected = start + count - 1 - self.routes_held
        if len(generation.logprobs_N) != count or len(generation.routes_RLK) != expected:
            raise ValueError(
                f"generation of {count} tokens has {len(generation.logprobs_N)} logprobs and "
                f"{len(generation.routes_RLK)} rows of routes; expected {count} and {expected}"
            )
        self._ids += generation.ids_N.tolist()
        self._origin += [Origin.SAMPLED] * count
        self._logprob += generation.logprobs_N.tolist()
        self._routes += list(generation.routes_RLK)
        for span in generation.spans:
            self._spans.append(VersionSpan(start + span.start, start + span.end, span.version))

    def build(self) -> Segment:
        """The finished segment, checked. Tokens after the last sampled one were never read by the engine: no routes."""
        length = len(self._ids)
        shape = self._routes[0].shape if self._routes else (0, 0)
        routes_TLK = np.full((length, *shape), MISSING_ROUTE, np.int16)
        if self._routes:
            routes_TLK[: len(self._routes)] = np.stack(self._routes)
        return Segment(
            ids_T=self.ids_T,
            origin_T=np.array(self._origin, np.uint8),
            logprob_T=np.array(self._logprob, np.float32),
            routes_TLK=routes_TLK,
            spans=tuple(self._spans),
        ).check()
