"""`Segment.check` names every mismatch with both sizes; outcomes say what is a reward."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from etude.records import Origin, Outcome, PolicyVersion, Rollout, Segment, VersionSpan
from tests.records.strategies import rollouts, segments

OLD, NEW = PolicyVersion(1, "0" * 32), PolicyVersion(2, "1" * 32)


def segment(**changed: Any) -> Segment:
    """Prompt, prompt, sampled by OLD, sampled by NEW, observation."""
    good = Segment(
        ids_T=np.arange(5, dtype="int32"),
        origin_T=np.array([0, 0, 1, 1, 2], "uint8"),
        logprob_T=np.array([np.nan, np.nan, -1.0, -2.0, np.nan], "float32"),
        routes_TLK=np.zeros((5, 2, 1), "int16"),
        spans=(VersionSpan(2, 3, OLD), VersionSpan(3, 4, NEW)),
    )
    return replace(good, **changed)


@given(segments())
def test_a_valid_segment_passes(valid: Segment) -> None:
    assert valid.check() is valid
    assert int(valid.sampled_T.sum()) == sum(span.end - span.start for span in valid.spans)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ids_T": np.arange(4, dtype="int32")}, "ids_T has 4 tokens but origin_T has 5"),
        ({"origin_T": np.zeros(6, "uint8")}, "ids_T has 5 tokens but origin_T has 6"),
        ({"logprob_T": np.zeros(3, "float32")}, "ids_T has 5 tokens but logprob_T has 3"),
        ({"routes_TLK": np.zeros((4, 2, 1), "int16")}, "ids_T has 5 tokens but routes_TLK has 4"),
        ({"ids_T": np.arange(5)}, "ids_T must be int32, got int64"),
        ({"origin_T": np.array([0, 0, 1, 1, 2], "int8")}, "origin_T must be uint8, got int8"),
        ({"logprob_T": np.zeros(5)}, "logprob_T must be float32, got float64"),
        ({"routes_TLK": np.zeros((5, 2, 1), "int32")}, "routes_TLK must be int16, got int32"),
        ({"routes_TLK": np.zeros((5, 2), "int16")}, r"routes_TLK must have axes TLK \(3\), got shape \(5, 2\)"),
        ({"ids_T": np.zeros((5, 1), "int32")}, r"ids_T must have axes T \(1\), got shape \(5, 1\)"),
        ({"ids_T": np.array(5, "int32")}, r"ids_T must have axes T \(1\), got shape \(\)"),
        ({"logprob_T": np.full(5, np.nan, "float32")}, "2 of 5 tokens have a logprob without"),
        ({"logprob_T": np.zeros(5, "float32")}, "3 of 5 tokens have a logprob without"),
        ({"origin_T": np.array([0, 0, 1, 1, 5], "uint8")}, "origin 5 is not one of 0 to 4"),
        ({"routes_TLK": np.full((5, 2, 1), -2, "int16")}, "expert id -2 is below -1"),
        ({"spans": ()}, "spans cover 0 tokens but 2 are SAMPLED"),
        ({"spans": (VersionSpan(2, 5, OLD),)}, "spans cover 3 tokens but 2 are SAMPLED"),
        ({"spans": (VersionSpan(1, 3, OLD),)}, "spans cover 2 tokens but 2 are SAMPLED"),
        ({"spans": (VersionSpan(3, 4, OLD), VersionSpan(2, 3, NEW))}, r"\[2, 3\) out of order in 5 tokens"),
        ({"spans": (VersionSpan(2, 4, OLD), VersionSpan(3, 4, NEW))}, r"\[3, 4\) out of order in 5 tokens"),
        ({"spans": (VersionSpan(2, 2, OLD),)}, r"\[2, 2\) out of order in 5 tokens"),
        ({"spans": (VersionSpan(4, 9, OLD),)}, r"\[4, 9\) out of order in 5 tokens"),
    ],
)
def test_every_mismatch_is_an_error_that_gives_both_sizes(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        segment(**changed).check()


def test_only_what_the_agent_did_is_a_reward() -> None:
    assert {outcome: outcome.reward for outcome in Outcome} == {
        Outcome.SOLVED: 1.0,
        Outcome.FAILED: 0.0,
        Outcome.OVERLONG: 0.0,
        Outcome.AGENT_FAULT: 0.0,
        Outcome.INFRA_FAULT: None,
        Outcome.ABORTED: None,
    }


@given(rollouts)
def test_sampled_tokens_are_those_with_a_logprob(rollout: Rollout) -> None:
    assert rollout.sampled_tokens == sum(int((~np.isnan(s.logprob_T)).sum()) for s in rollout.segments)
    assert rollout.sampled_tokens == sum(int((s.origin_T == Origin.SAMPLED).sum()) for s in rollout.segments)


def test_versions_come_in_order_of_use() -> None:
    two = Rollout("r", "g", "t", 1, 0, (segment(), segment()), Outcome.SOLVED, 1.0)
    assert list(two.versions) == [OLD, NEW, OLD, NEW]
