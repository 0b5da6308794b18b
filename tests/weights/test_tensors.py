"""Tables of bits: refused where they do not fit, and every mismatch names the tensor and both sides."""

import numpy as np
import pytest

from etude.weights import TensorBits, check_same_table, copy_weights, table_hash, total_bytes, total_elements
from etude.weights.tensors import groups
from tests.weights.cases import model, same


@pytest.mark.parametrize(
    ("dtype", "bits", "message"),
    [
        ("bfloat16", np.zeros(3, np.uint32), "bfloat16 needs bits of uint16, got uint32"),
        ("float32", np.zeros(3, np.float32), "float32 needs bits of uint32, got float32"),
        ("float32", np.zeros((), np.uint32) * 0, "needs a numpy array, got "),
        ("bf16", np.zeros(3, np.uint16), "unknown dtype 'bf16'"),
        ("bfloat16", np.zeros((4, 4), np.uint16)[:, 1:], "not C-contiguous"),
        ("bfloat16", np.zeros(3, ">u2"), "needs bits of uint16, got >u2"),
    ],
)
def test_bits_that_do_not_fit_their_dtype_are_refused(dtype: str, bits: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorBits(dtype, bits)


def test_a_flat_view_writes_to_the_tensor() -> None:
    tensor = TensorBits("bfloat16", np.zeros((2, 3), np.uint16))
    tensor.flat[4] = 7
    assert tensor.bits.tolist() == [[0, 0, 0], [0, 7, 0]]


def test_a_mismatch_names_the_tensor_and_both_sides() -> None:
    old, new = model(), model()
    new["router.bias"] = TensorBits("float32", np.zeros(9, np.uint32))
    with pytest.raises(ValueError, match=r"tensor router.bias: float32\[8\] on one side, float32\[9\] on the other"):
        check_same_table(old, new)
    del new["router.bias"]
    with pytest.raises(ValueError, match=r"tensor router.bias: float32\[8\] on one side, absent on the other"):
        check_same_table(old, new)
    with pytest.raises(ValueError, match=r"absent on one side, float32\[8\] on the other"):
        check_same_table(new, old)
    check_same_table(old, model(seed=1))


def test_the_table_hash_sees_names_dtypes_and_shapes_but_neither_order_nor_bits() -> None:
    table = model()
    known = table_hash(table)
    assert table_hash(dict(reversed(table.items()))) == known == table_hash(model(seed=1))
    others = [
        {**table, "more": table["scale"]},
        {name: tensor for name, tensor in table.items() if name != "unused"},
        {**table, "router.bias": TensorBits("int32", table["router.bias"].bits)},
        {**table, "router.bias": TensorBits("float32", table["router.bias"].bits.reshape(2, 4))},
    ]
    assert len({known, *map(table_hash, others)}) == 5


def test_sizes_count_every_tensor_once() -> None:
    assert total_elements(model()) == 64 * 32 + 2 * 16 * 32 + 8 + 1
    assert total_bytes(model()) == 2 * (64 * 32 + 2 * 16 * 32) + 4 * 9


def test_a_copy_has_the_same_bits_in_memory_of_its_own() -> None:
    table = model()
    copy = copy_weights(table)
    assert same(table, copy)
    copy["scale"].flat[0] = 0
    assert not same(table, copy) and same(table, model())


@pytest.mark.parametrize("limit", [0, 1024, 1 << 30])
def test_groups_hold_every_tensor_once_within_the_limit(limit: int) -> None:
    found = list(groups(model(), limit))
    assert [name for group in found for name in group] == sorted(model())
    assert all(total_bytes(group) <= limit or len(group) == 1 for group in found)
    assert list(groups({}, limit)) == [{}]
