"""A segment grows at its end only; every token keeps the logprob, version and experts it came with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.agent import SegmentBuilder
from etude.inference.engine import Finish, Generation
from etude.records import Origin, PolicyVersion, VersionSpan

VERSIONS = (PolicyVersion(4, "a" * 32), PolicyVersion(5, "b" * 32))


def generation(
    builder: SegmentBuilder, count: int, changed_at: int | None = None, rows: int | None = None
) -> Generation:
    """`count` tokens 100, 101, ...; route row r is filled with the position of its token; the version may change."""
    start = len(builder)
    held = builder.routes_held
    rows = start + count - 1 - held if rows is None else rows
    cut = count if changed_at is None else changed_at
    spans = [VersionSpan(0, cut, VERSIONS[0]), VersionSpan(cut, count, VERSIONS[1])]
    return Generation(
        session="s",
        ids_N=np.arange(100, 100 + count, dtype=np.int32),
        logprobs_N=-np.arange(1, count + 1, dtype=np.float32),
        routes_RLK=np.arange(held, held + rows, dtype=np.int16)[:, None, None] * np.ones((1, 2, 3), np.int16),
        spans=tuple(span for span in spans if span.start < span.end),
        finish=Finish.STOP,
    )


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([Origin.OBSERVATION, Origin.QUERY, Origin.COPIED]), st.integers(0, 5)),
        st.tuples(st.just(Origin.SAMPLED), st.integers(1, 5)),
    ),
    max_size=8,
)


@given(steps)
def test_a_segment_is_what_was_appended_in_order(steps: list[tuple[Origin, int]]) -> None:
    builder = SegmentBuilder()
    builder.add([7, 8, 9], Origin.PROMPT)
    expected = [(token, Origin.PROMPT) for token in (7, 8, 9)]
    sampled_until = 0
    for origin, count in steps:
        if origin is Origin.SAMPLED:
            builder.add_sampled(generation(builder, count, changed_at=count // 2))
            expected += [(100 + n, origin) for n in range(count)]
            sampled_until = len(expected)
        else:
            builder.add(list(range(count)), origin)
            expected += [(n, origin) for n in range(count)]
    segment = builder.build()
    assert segment.ids_T.tolist() == [token for token, _ in expected] == builder.ids_T.tolist()
    assert segment.origin_T.tolist() == [origin for _, origin in expected]
    read = max(0, sampled_until - 1)  # the engine never read the last token it sampled, nor anything after it
    assert builder.routes_held == read
    if sampled_until:
        assert segment.routes_TLK.shape == (len(expected), 2, 3)
        assert (segment.routes_TLK[:read] == np.arange(read)[:, None, None]).all()
        assert (segment.routes_TLK[read:] == -1).all()
    per_token = {t: span.version for span in segment.spans for t in range(span.start, span.end)}
    assert sorted(per_token) == np.flatnonzero(segment.sampled_T).tolist()


def test_the_version_of_every_token_is_that_of_its_generation() -> None:
    builder = SegmentBuilder()
    builder.add([1, 2], Origin.PROMPT)
    builder.add_sampled(generation(builder, 4, changed_at=3))
    builder.add([5], Origin.OBSERVATION)
    builder.add_sampled(generation(builder, 2, changed_at=0))
    assert builder.build().spans == (
        VersionSpan(2, 5, VERSIONS[0]),
        VersionSpan(5, 6, VERSIONS[1]),
        VersionSpan(7, 9, VERSIONS[1]),
    )


def test_the_first_capture_of_a_route_wins() -> None:
    """After an eviction an engine computes old tokens again, perhaps with other experts: it is asked for new rows only,
    and rows that are held do not change."""
    builder = SegmentBuilder()
    builder.add([1, 2, 3], Origin.PROMPT)
    builder.add_sampled(generation(builder, 2))
    first = builder.build().routes_TLK[:4].copy()
    builder.add([4], Origin.OBSERVATION)
    assert builder.routes_held == 4  # 3 + 2 tokens, the last of which nobody read
    builder.add_sampled(generation(builder, 3))
    assert (builder.build().routes_TLK[:4] == first).all()
    with pytest.raises(ValueError, match=r"10 rows of routes; expected 1 and 1$"):
        builder.add_sampled(generation(builder, 1, rows=10))  # all rows over again


def test_fault_17_routes_misaligned() -> None:
    """n tokens come with n - 1 rows; the last is missing (-1), never expert 0."""
    builder = SegmentBuilder()
    builder.add([1, 2], Origin.PROMPT)
    builder.add_sampled(generation(builder, 3))
    assert builder.build().routes_TLK[:, 0, 0].tolist() == [0, 1, 2, 3, -1]
    with pytest.raises(
        ValueError, match="generation of 2 tokens has 2 logprobs and 3 rows of routes; expected 2 and 2"
    ):
        builder.add_sampled(generation(builder, 2, rows=3))


def test_a_generation_with_other_lengths_is_refused_with_both_sizes() -> None:
    builder = SegmentBuilder()
    builder.add([1, 2], Origin.PROMPT)
    good = generation(builder, 3)
    short = Generation("s", good.ids_N, good.logprobs_N[:2], good.routes_RLK, good.spans, good.finish)
    with pytest.raises(
        ValueError, match="generation of 3 tokens has 2 logprobs and 4 rows of routes; expected 3 and 4"
    ):
        builder.add_sampled(short)
    assert len(builder) == 2  # nothing of it was kept


def test_only_a_generation_can_add_sampled_tokens() -> None:
    with pytest.raises(AssertionError):
        SegmentBuilder().add([1], Origin.SAMPLED)
