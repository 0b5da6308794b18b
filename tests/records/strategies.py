"""Hypothesis strategies for records: every valid one, with the awkward values (NaN payloads, empty axes) included."""

import numpy as np
from hypothesis import strategies as st

from etude.records import MISSING_ROUTE, Origin, Outcome, PolicyVersion, Rollout, Segment, VersionSpan
from etude.records.ledger import Disposition, LedgerEntry

names = st.text(st.characters(codec="utf-8"), max_size=12)
int64s = st.integers(-(2**63), 2**63 - 1)
versions = st.builds(
    PolicyVersion, step=st.integers(0, 2**40), digest=st.text("0123456789abcdef", min_size=32, max_size=32)
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Blocks of unsampled and sampled tokens; a sampled block may be cut into spans of several versions."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    origins: list[int] = []
    spans = []
    for sampled, length in draw(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=6)):
        if sampled:
            spans.append(VersionSpan(len(origins), len(origins) + length, draw(versions)))
        origins += [Origin.SAMPLED if sampled else int(rng.choice([0, 2, 3, 4]))] * length
    origin_T = np.array(origins, "uint8")
    sampled_T = origin_T == Origin.SAMPLED
    logprob_T = np.where(sampled_T, -rng.random(len(origins)), np.nan).astype("float32")
    logprob_T.view("uint32")[~sampled_T] |= rng.integers(
        0, 1000, int((~sampled_T).sum()), dtype="uint32"
    )  # NaN payloads
    logprob_T[sampled_T & (rng.random(len(origins)) < 0.2)] = draw(st.sampled_from([-0.0, 0.0, -np.inf]))
    shape = (len(origins), draw(st.integers(0, 3)), draw(st.integers(0, 2)))
    routes_TLK = rng.integers(MISSING_ROUTE, 2**15 - 1, shape).astype("int16")
    return Segment(
        rng.integers(0, 2**31 - 1, len(origins)).astype("int32"), origin_T, logprob_T, routes_TLK, tuple(spans)
    )


rollouts = st.builds(
    Rollout,
    rollout_id=names,
    group_id=names,
    task_id=names,
    tier=st.integers(0, 9),
    attempt=st.integers(0, 9),
    segments=st.lists(segments(), max_size=3).map(tuple),
    outcome=st.sampled_from(Outcome),
    reward=st.none() | st.floats(),
    seconds=st.dictionaries(names, st.floats(), max_size=3),
    counts=st.dictionaries(names, int64s, max_size=3),
    detail=names,
)
entries = st.builds(
    LedgerEntry,
    rollout=rollouts,
    step=st.integers(0, 2**40),
    disposition=st.sampled_from(Disposition),
    advantage=st.none() | st.floats(),
)
