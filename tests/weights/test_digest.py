"""The state digest is its definition, adds up over any layout, and sees every change."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.weights import (
    Digest,
    TensorBits,
    TensorMeta,
    WeightsError,
    copy_weights,
    diff_weights,
    digest_change,
    elements_digest,
    state_digest,
    tensor_digest,
)
from etude.weights import digest as digest_module
from tests.weights.cases import changes, model, reference_digest, tables

GOLDEN = "d702b6ae38dddd7c75c06e93faef5717"


@settings(max_examples=60, deadline=None)
@given(tables())
def test_the_digest_is_its_definition(table: dict[str, TensorBits]) -> None:
    plain = {f"t{number}": tensor for number, tensor in enumerate(table.values())}  # names that need no JSON escapes
    assert state_digest(plain) == reference_digest(plain)


def test_the_definition_stays_what_it_is() -> None:
    """Digests are written into records and chains: this number may never change."""
    weights = {"w": TensorBits("bfloat16", np.arange(6, dtype=np.uint16).reshape(2, 3))}
    assert state_digest(weights).hex() == reference_digest(weights).hex() == GOLDEN


@settings(max_examples=60, deadline=None)
@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_tensors_does_not_matter(table: dict[str, TensorBits], random: object) -> None:
    shuffled = list(table.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert state_digest(dict(shuffled)) == state_digest(table)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_chunks_do_not_matter(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reference_digest(model())
    monkeypatch.setattr(digest_module, "_CHUNK", 100)
    assert state_digest(model(), threads) == expected


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_shards_of_runs_sum_to_the_whole(table: dict[str, TensorBits], data: st.DataObject) -> None:
    total = Digest()
    for name, tensor in table.items():
        size = tensor.bits.size
        cuts = [0, *sorted(data.draw(st.lists(st.integers(0, size), max_size=3))), size]
        for start, end in itertools.pairwise(cuts):
            shard = TensorBits(tensor.dtype, tensor.flat[start:end].copy())
            total += tensor_digest(name, shard, start, tensor.bits.shape)
    assert total == state_digest(table)


def test_shards_of_columns_and_of_experts_sum_to_the_whole() -> None:
    """Tensor parallelism cuts columns: their flat indices are not a run."""
    tensor = model()["embed.weight"]
    flat_index = np.arange(tensor.bits.size).reshape(tensor.bits.shape)
    halves = (np.s_[:, :10], np.s_[:, 10:])
    parts = [elements_digest("e", tensor.meta, flat_index[at].ravel(), tensor.bits[at].ravel()) for at in halves]
    assert parts[0] + parts[1] == tensor_digest("e", tensor)


@settings(max_examples=60, deadline=None)
@given(changes())
def test_a_change_brings_the_digest_forward_and_back(pair: tuple[dict[str, TensorBits], dict[str, TensorBits]]) -> None:
    old, new = pair
    change = Digest()
    for staged in diff_weights(old, new):
        change += digest_change(staged.name, old[staged.name].meta, staged.index, staged.old, staged.new)
    assert state_digest(old) + change == state_digest(new)
    assert state_digest(new) - change == state_digest(old)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["uint8", "bfloat16", "float32", "float64"]), st.data())
def test_every_bit_counts_in_both_lanes(dtype: str, data: st.DataObject) -> None:
    width = {"uint8": 8, "bfloat16": 16, "float32": 32, "float64": 64}[dtype]
    bits = np.zeros(17, f"u{width // 8}")
    before = state_digest({"w": TensorBits(dtype, bits)})
    bits[data.draw(st.integers(0, 16))] ^= bits.dtype.type(1 << data.draw(st.integers(0, width - 1)))
    after = state_digest({"w": TensorBits(dtype, bits)})
    assert before.lane0 != after.lane0 and before.lane1 != after.lane1


def test_opposite_flips_of_one_bit_do_not_cancel() -> None:
    """0 -> 1 in one element and 1 -> 0 in another: neither half of a lane sums to zero."""
    n = 200
    flips = np.arange(n)
    meta = TensorMeta("bfloat16", (2 * n,))
    for bit in range(16):
        on = np.uint16(1 << bit)
        up = [digest_change("w", meta, flips[i : i + 1], np.array([0], np.uint16), np.array([on])) for i in range(n)]
        down = [
            digest_change("w", meta, flips[i : i + 1] + n, np.array([on]), np.array([0], np.uint16)) for i in range(n)
        ]
        sums = [first + second for first in up[:40] for second in down[:40]]
        assert all(total.lane0 >> 32 and total.lane1 >> 32 for total in sums)
        assert all(total.lane0 & 0xFFFFFFFF and total.lane1 & 0xFFFFFFFF for total in sums)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_two_swapped_elements_are_seen(data: st.DataObject) -> None:
    weights = copy_weights(model())
    flat = weights["embed.weight"].flat
    first, second = data.draw(st.lists(st.integers(0, flat.size - 1), min_size=2, max_size=2, unique=True))
    flat[first], flat[second] = 0x3C00, 0x3C01
    before = state_digest(weights)
    flat[first], flat[second] = flat[second], flat[first]
    after = state_digest(weights)
    assert before.lane0 != after.lane0 and before.lane1 != after.lane1


def test_two_swapped_tensors_of_equal_shape_are_seen() -> None:
    weights = model()
    first, second = "layers.0.experts.0.up.weight", "layers.0.experts.1.up.weight"
    swapped = {**weights, first: weights[second], second: weights[first]}
    assert state_digest(swapped) != state_digest(weights)


@pytest.mark.parametrize("other", ["name", "dtype", "shape"])
def test_name_dtype_and_shape_are_part_of_the_digest(other: str) -> None:
    bits = np.arange(6, dtype=np.uint16)
    tensors = {
        "name": {"v": TensorBits("bfloat16", bits)},
        "dtype": {"w": TensorBits("float16", bits)},
        "shape": {"w": TensorBits("bfloat16", bits.reshape(2, 3))},
    }
    assert state_digest(tensors[other]) != state_digest({"w": TensorBits("bfloat16", bits)})


def test_elements_are_mixed_well() -> None:
    """20,000 elements at near places with near bits: no two alike in either lane, and half of all bits set."""
    meta = TensorMeta("bfloat16", (20_000,))
    one = [
        elements_digest("w", meta, np.array([i]), np.array([bits], np.uint16))
        for i in range(200)
        for bits in range(100)
    ]
    assert len({digest.lane0 for digest in one}) == len({digest.lane1 for digest in one}) == 20_000
    mean = np.mean([digest.lane0.bit_count() + digest.lane1.bit_count() for digest in one])
    assert abs(mean - 64) < 0.2  # standard error 0.04


def test_hex_and_parse_are_inverse_and_parse_is_strict() -> None:
    digest = Digest(1, 2**64 - 1)
    assert digest.hex() == "0000000000000001ffffffffffffffff"
    assert Digest.parse(digest.hex()) == digest
    for wrong in ("", "0" * 31, "0" * 33, "G" * 32, "A" * 32, " " * 32, "+" + "0" * 31):
        with pytest.raises(WeightsError, match="32 hex digits"):
            Digest.parse(wrong)


def test_a_length_mismatch_gives_both_lengths() -> None:
    with pytest.raises(ValueError, match=r"tensor w: \(2,\) indices for \(3,\) elements"):
        elements_digest("w", TensorMeta("bfloat16", (9,)), np.arange(2), np.zeros(3, np.uint16))
