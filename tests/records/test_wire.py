"""Records survive the wire bit for bit; hostile bytes are refused with a ValueError."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.records import Rollout, Segment, Task, decode, encode
from tests.records.strategies import names, rollouts


def array(dtype: object = "int32", shape: object = (0,), data: object = b"") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data": data}


def on_the_wire(ids: object) -> bytes:
    good = {"origin_T": array("uint8"), "logprob_T": array("float32"), "routes_TLK": array("int16", (0, 0, 0))}
    return msgspec.msgpack.encode({"ids_T": ids, **good, "spans": []})


@given(rollouts)
@settings(max_examples=60, deadline=None)
def test_a_rollout_survives_the_wire_bit_for_bit(rollout: Rollout) -> None:
    back = decode(encode(rollout), Rollout)
    assert encode(back) == encode(rollout)
    for before, after in zip(rollout.segments, back.segments, strict=True):
        for name in ("ids_T", "origin_T", "logprob_T", "routes_TLK"):
            old, new = getattr(before, name), getattr(after, name)
            assert (old.dtype, old.shape, old.tobytes()) == (new.dtype, new.shape, new.tobytes())
            assert new.flags.writeable


@given(names, st.dictionaries(names, names, max_size=3), st.lists(names, max_size=3))
def test_a_task_keeps_its_content_id_over_the_wire(prompt: str, files: dict[str, str], command: list[str]) -> None:
    task = Task.make(family="katas", tier=2, prompt=prompt, files=files, tests={}, command=tuple(command))
    assert decode(encode(task), Task) == task
    again = Task.make(
        family="katas", tier=2, prompt=prompt, files=dict(reversed(files.items())), tests={}, command=tuple(command)
    )
    assert again.task_id == task.task_id
    other = Task.make(family="katas", tier=2, prompt=prompt + "!", files=files, tests={}, command=tuple(command))
    assert other.task_id != task.task_id


def test_byte_order_and_strides_do_not_change_the_values() -> None:
    big_T, every_second_T = np.arange(5, dtype=">i4"), np.arange(10, dtype="int32")[::2]
    for ids_T in (big_T, every_second_T):
        empty = Segment(ids_T, np.zeros(0, "uint8"), np.zeros(0, "float32"), np.zeros((0, 1, 1), "int16"), ())
        back = decode(encode(empty), Segment)
        assert back.ids_T.dtype == np.dtype("int32")
        assert back.ids_T.tolist() == ids_T.tolist()


def test_a_dtype_that_the_wire_does_not_carry_is_refused_when_written() -> None:
    with pytest.raises(ValueError, match="complex64 is not one of"):
        encode(Segment(np.zeros(1, "complex64"), *[np.zeros(0)] * 3, ()))


@pytest.mark.parametrize(
    "ids",
    [
        3,
        None,
        {},
        array(dtype="object", shape=(1,), data=b"12345678"),
        array(dtype=["int32"]),
        array(dtype="int32", shape="3"),
        array(shape=(-1,)),
        array(shape=(1.5,)),
        array(shape=(2,), data=b"1234"),
        array(shape=(1,), data="1234"),
        array(shape=(2**62, 2**62)),
        array(shape=(0, 2**63)),
        array(shape=(1,) * 100, data=b"1234"),
    ],
)
def test_hostile_arrays_are_refused(ids: object) -> None:
    assert len(decode(on_the_wire(array()), Segment)) == 0, "the frame around the array is fine"
    with pytest.raises(ValueError):
        decode(on_the_wire(ids), Segment)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data, Rollout)


@given(rollouts, st.data())
@settings(max_examples=40, deadline=None)
def test_a_cut_record_is_refused(rollout: Rollout, data: st.DataObject) -> None:
    whole = encode(rollout)
    with pytest.raises(ValueError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))], Rollout)


def test_endless_nesting_is_refused() -> None:
    junk = b"\x86" + msgspec.msgpack.encode("junk") + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(ValueError):
        decode(junk, Segment)
