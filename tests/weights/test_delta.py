"""Blobs: what is decoded is what was encoded, bit for bit; equal weights give equal bytes; nothing else is accepted."""

import numpy as np
import pytest
from hypothesis import given, settings

from etude.weights import (
    StagedTensor,
    TensorBits,
    WeightsError,
    commit,
    copy_weights,
    decode_full,
    diff_weights,
    encode_delta,
    encode_full,
    stage_delta,
    stage_full,
    total_bytes,
    undo,
)
from tests.weights.cases import as_dict, changes, model, same, tables, train

Pair = tuple[dict[str, TensorBits], dict[str, TensorBits]]


@settings(max_examples=100, deadline=None)
@given(changes())
def test_a_delta_turns_old_into_new_and_undo_turns_it_back(pair: Pair) -> None:
    old, new = pair
    live, before = copy_weights(old), as_dict(old)
    staged = stage_delta(encode_delta(old, new), live)
    assert as_dict(live) == before, "staging wrote to live memory"
    commit(staged, live)
    assert same(live, new)
    commit(staged, live)
    assert same(live, new), "committing twice changed something"
    undo(staged, live)
    assert same(live, old)


@settings(max_examples=100, deadline=None)
@given(tables())
def test_a_base_is_the_weights(table: dict[str, TensorBits]) -> None:
    decoded = decode_full(encode_full(table))
    assert same(decoded, table)
    assert all(tensor.bits.flags.writeable for tensor in decoded.values())


@settings(max_examples=60, deadline=None)
@given(changes())
def test_a_base_stages_only_what_differs(pair: Pair) -> None:
    live, new = pair
    staged = stage_full(encode_full(new), live)
    assert [one.name for one in staged] == [one.name for one in diff_weights(live, new)]
    commit(staged, live)
    assert same(live, new)


@settings(max_examples=60, deadline=None)
@given(changes())
def test_equal_weights_give_equal_bytes(pair: Pair) -> None:
    old, new = pair
    again = [copy_weights(dict(reversed(list(table.items())))) for table in pair]
    assert encode_delta(old, new) == encode_delta(*again)
    assert encode_full(new) == encode_full(again[1])


def test_unchanged_tensors_cost_nothing() -> None:
    empty = encode_delta(model(), model())
    assert len(empty) == 49, "fixed part and an empty header"
    assert stage_delta(empty, model()) == []
    new = model()
    new["scale"].flat[0] ^= 1
    assert [staged.name for staged in stage_delta(encode_delta(model(), new), model())] == ["scale"]


def test_each_tensor_takes_its_smaller_coding() -> None:
    """Few changes: the XOR. A tensor set to zero: its old bits as an XOR would be large, the new ones are tiny."""
    old, few = model(), model()
    few["embed.weight"].flat[::100] ^= 1
    zeroed = {**old, "embed.weight": TensorBits("bfloat16", np.zeros((64, 32), np.uint16))}
    assert len(encode_delta(old, few)) < 200
    assert len(encode_delta(old, zeroed)) < 200
    commit(stage_delta(encode_delta(old, zeroed), old), old)
    assert same(old, zeroed)


def test_a_sparse_delta_is_far_smaller_than_the_model() -> None:
    rng = np.random.default_rng(0)
    bits = (rng.normal(0, 0.02, 1 << 18).astype("<f4").view("<u4") >> 16).astype(np.uint16)
    old = {"w": TensorBits("bfloat16", bits)}
    new = copy_weights(old)
    train(new, seed=1, share=0.01)
    assert total_bytes(old) / len(encode_delta(old, new)) > 50
    assert total_bytes(old) / len(encode_full(old)) < 1.6  # a bf16 snapshot keeps two thirds of its size


def test_indices_are_ascending_and_name_only_what_changed() -> None:
    old = model()
    new = copy_weights(old)
    train(new, seed=3)
    for staged in stage_delta(encode_delta(old, new), old):
        changed = np.flatnonzero(old[staged.name].flat != new[staged.name].flat)
        assert staged.index.dtype == np.uint32
        assert np.array_equal(staged.index, changed)
        assert np.array_equal(staged.new, new[staged.name].flat[changed])
        assert np.array_equal(staged.old, old[staged.name].flat[changed])


def test_a_staged_change_does_not_follow_later_writes() -> None:
    old, new = model(), model()
    train(new, seed=3)
    expected = as_dict(new)
    staged = diff_weights(old, new)
    train(new, seed=4)
    commit(staged, old)
    assert as_dict(old) == expected


@pytest.mark.parametrize(
    ("staged", "message"),
    [
        (StagedTensor("w", np.array([0]), np.zeros(1, np.uint16), np.zeros(1, np.uint16)), "w: staged, but absent"),
        (StagedTensor("scale", np.array([1]), np.zeros(1, np.uint32), np.zeros(1, np.uint32)), "of 1 elements"),
        (StagedTensor("scale", np.array([0]), np.zeros(1, np.uint16), np.zeros(1, np.uint16)), "uint16 up to"),
    ],
)
def test_a_commit_that_does_not_fit_writes_nothing(staged: StagedTensor, message: str) -> None:
    live, new = model(), model()
    train(new, seed=1)
    with pytest.raises(WeightsError, match=message):
        commit([*diff_weights(live, new), staged], live)
    assert same(live, model())


def test_tables_that_differ_are_refused_by_name() -> None:
    other = {name: tensor for name, tensor in model().items() if name != "scale"}
    for call in (encode_delta, diff_weights):
        with pytest.raises(ValueError, match=r"tensor scale: float32\[\] on one side, absent on the other"):
            call(model(), other)


def test_a_base_is_not_taken_for_a_delta_nor_the_reverse() -> None:
    with pytest.raises(WeightsError, match="expected a delta"):
        stage_delta(encode_full(model()), model())
    with pytest.raises(WeightsError, match="expected a base"):
        decode_full(encode_delta(model(), model()))
