"""A frame is read whole or not at all."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.machines.process.inside import frames

json_values = st.none() | st.integers() | st.text() | st.lists(st.lists(st.text()))
headers = st.dictionaries(st.text(), json_values, max_size=4)


@given(st.lists(st.tuples(headers, st.binary(max_size=200)), max_size=4), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(sent: list, piece: int) -> None:
    stream = io.BytesIO(b"".join(frames.pack(header, body) for header, body in sent))
    for header, body in sent:
        assert frames.receive(lambda size: stream.read(min(size, piece))) == (header, body)
    assert frames.receive(stream.read) is None


@given(headers, st.binary(max_size=50), st.data())
def test_a_cut_frame_is_broken(header: dict, body: bytes, data: st.DataObject) -> None:
    whole = frames.pack(header, body)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(frames.Broken):
        frames.receive(io.BytesIO(whole[:cut]).read)


def test_sizes_beyond_the_limit_are_refused_before_anything_is_read() -> None:
    with pytest.raises(frames.Broken, match="announced"):
        frames.lengths(frames.LENGTHS.pack(frames.MAX_HEADER + 1, 0))
    with pytest.raises(ValueError, match=f"at most {frames.MAX_HEADER}"):
        frames.pack({"x": "y" * frames.MAX_HEADER})
    for text in (b"[1]", b"{", b"\xff"):
        with pytest.raises(frames.Broken):
            frames.parse(text)
