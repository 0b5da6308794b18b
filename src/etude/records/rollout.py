"""One attempt at one task, token by token: the record that travels from the sampler to the loss.

Invariants, checked by `Segment.check` wherever a segment is made, read or trained:
* all per-token arrays have the same length T;
* only SAMPLED tokens carry a logprob, and every SAMPLED token carries one;
* the version spans cover exactly the SAMPLED tokens, in order, without overlap;
* missing is its own value: route -1, logprob NaN, reward None.

Shape legend: T tokens of one segment, L MoE layers, K experts per token.
"""

from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Annotated

import msgspec
import numpy as np

from etude.records.version import PolicyVersion, VersionSpan

MISSING_ROUTE = -1

Array = Annotated[np.ndarray, "numpy array, see etude.records.wire for its bytes"]

_LAYOUT = (
    ("ids_T", "int32", "T"),
    ("origin_T", "uint8", "T"),
    ("logprob_T", "float32", "T"),
    ("routes_TLK", "int16", "TLK"),
)


class Origin(IntEnum):
    """Where a token came from. Only SAMPLED tokens are trained, each exactly once."""

    PROMPT = 0
    SAMPLED = 1
    OBSERVATION = 2
    QUERY = 3  # the harness asking for a summary
    COPIED = 4  # a summary or tail carried over from the segment before


class Outcome(StrEnum):
    """How a rollout ended."""

    SOLVED = "solved"
    FAILED = "failed"
    OVERLONG = "overlong"  # ran out of turns, tokens or summaries
    AGENT_FAULT = "agent_fault"  # the agent broke its own machine or protocol; counts as failed
    INFRA_FAULT = "infra_fault"  # retried, never a reward
    ABORTED = "aborted"  # stopped by us, e.g. at shutdown

    @property
    def reward(self) -> float | None:
        """1 for solved, 0 for what the agent failed, None where infrastructure or a stop ended the rollout."""
        if self in (Outcome.INFRA_FAULT, Outcome.ABORTED):
            return None
        return 1.0 if self is Outcome.SOLVED else 0.0


class Segment(msgspec.Struct, frozen=True):
    """One context window of a rollout, and one training row.

    ids_T:      int32, exactly what the engine read and wrote.
    origin_T:   uint8, `Origin` of each token.
    logprob_T:  float32, log-probability under the sampling distribution at sampling time; NaN where not SAMPLED.
    routes_TLK: int16, expert ids of the pass that *consumed* token t (and so predicted token t + 1); -1 missing.
                The last token of a segment is consumed by no pass, so its row is -1.
    spans:      which weights sampled which tokens.
    """

    ids_T: Array
    origin_T: Array
    logprob_T: Array
    routes_TLK: Array
    spans: tuple[VersionSpan, ...]

    def __len__(self) -> int:
        return len(self.ids_T)

    @property
    def sampled_T(self) -> np.ndarray:
        """Boolean mask of the tokens the policy sampled here: the tokens that are trained."""
        return self.origin_T == Origin.SAMPLED

    def check(self) -> "Segment":
        """Return self, or raise ValueError naming the mismatch and both sizes."""
        self._check_arrays()
        length = len(self)
        sampled_T = self.sampled_T
        wrong = int(np.sum(np.isnan(self.logprob_T) == sampled_T))
        if wrong:
            raise ValueError(
                f"segment: {wrong} of {length} tokens have a logprob without being SAMPLED, or the reverse"
            )
        covered_T = np.zeros(length, bool)
        last = 0
        for span in self.spans:
            if not last <= span.start < span.end <= length:
                raise ValueError(f"segment: version span [{span.start}, {span.end}) out of order in {length} tokens")
            covered_T[span.start : span.end] = True
            last = span.end
        if not np.array_equal(covered_T, sampled_T):
            raise ValueError(f"segment: spans cover {covered_T.sum()} tokens but {sampled_T.sum()} are SAMPLED")
        return self

    def _check_arrays(self) -> None:
        """Dtypes, axes, lengths and ranges, so that everything after may index freely."""
        for name, dtype, axes in _LAYOUT:
            array = getattr(self, name)
            if array.dtype != dtype:
                raise ValueError(f"segment: {name} must be {dtype}, got {array.dtype}")
            if array.ndim != len(axes):
                raise ValueError(f"segment: {name} must have axes {axes} ({len(axes)}), got shape {array.shape}")
            if len(array) != len(self.ids_T):
                raise ValueError(f"segment: ids_T has {len(self.ids_T)} tokens but {name} has {len(array)}")
        if self.origin_T.size and self.origin_T.max() > max(Origin):
            raise ValueError(f"segment: origin {self.origin_T.max()} is not one of 0 to {max(Origin):d}")
        if self.routes_TLK.size and self.routes_TLK.min() < MISSING_ROUTE:
            raise ValueError(
                f"segment: expert id {self.routes_TLK.min()} is below {MISSING_ROUTE}, which means missing"
            )


class Rollout(msgspec.Struct, frozen=True):
    """One attempt at one task. K self-summaries give K + 1 segments; they share one advantage.

    reward: None when the attempt says nothing about the agent (INFRA_FAULT, ABORTED).
    attempt: how often infrastructure trouble made this rollout start over, 0 at first.
    seconds: wall time by phase, keys "model", "tool", "grade".
    counts: small integers for metrics, e.g. turns, tool_errors, summaries.
    detail: one line for people: why it ended as it did.
    """

    rollout_id: str
    group_id: str
    task_id: str
    tier: int
    attempt: int
    segments: tuple[Segment, ...]
    outcome: Outcome
    reward: float | None
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    detail: str = ""

    @property
    def versions(self) -> Iterator[PolicyVersion]:
        """The versions that sampled tokens of this rollout, in order of use."""
        return (span.version for segment in self.segments for span in segment.spans)

    @property
    def sampled_tokens(self) -> int:
        return int(sum(segment.sampled_T.sum() for segment in self.segments))
