"""Weights as bits: what every part of this room reads, compares and writes.

Invariant: a `TensorBits` is exactly the bits of one tensor. Nothing here interprets them as numbers, so NaN payloads
and -0.0 are values like any other; and a view of live memory stays a view, so what is scattered into it is computed
with.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import blake3
import msgspec
import numpy as np

_WIDTHS = {
    1: ("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    2: ("bfloat16", "float16", "int16", "uint16"),
    4: ("float32", "int32", "uint32"),
    8: ("float64", "int64", "uint64"),
}
WIDTH = {dtype: width for width, dtypes in _WIDTHS.items() for dtype in dtypes}


class WeightsError(ValueError):
    """Weights, a blob or a chain are not what they claim to be. The message names what; nothing was changed."""


class TensorMeta(msgspec.Struct, frozen=True):
    """What a tensor is beside its bits. dtype: a name as torch spells it, "bfloat16"."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True, eq=False)
class TensorBits:
    """One tensor. dtype: a name as torch spells it; bits: unsigned integers of that width, C-contiguous, any shape.

    Raises ValueError when the two do not fit or the array could not be scattered into in place.
    """

    dtype: str
    bits: np.ndarray

    def __post_init__(self) -> None:
        width = WIDTH.get(self.dtype)
        if width is None:
            raise ValueError(f"tensor bits: unknown dtype {self.dtype!r}; known are {', '.join(WIDTH)}")
        if not isinstance(self.bits, np.ndarray):  # numpy turns results without axes into scalars, which are no memory
            raise ValueError(f"tensor bits: {self.dtype} needs a numpy array, got {type(self.bits).__name__}")
        if self.bits.dtype != bits_dtype(self.dtype):
            raise ValueError(f"tensor bits: {self.dtype} needs bits of uint{8 * width}, got {self.bits.dtype}")
        if not self.bits.flags.c_contiguous:
            raise ValueError(f"tensor bits: {self.dtype}{list(self.bits.shape)} is not C-contiguous")

    @property
    def meta(self) -> TensorMeta:
        return TensorMeta(self.dtype, self.bits.shape)

    @property
    def flat(self) -> np.ndarray:
        """The bits in canonical order, as a view: writing to it writes to the tensor."""
        return self.bits.reshape(-1)


Weights = Mapping[str, TensorBits]
"""Tensors by canonical name: the name, dtype and shape that the checkpoint has."""


def bits_dtype(dtype: str) -> np.dtype:
    """The unsigned integer that holds one element of `dtype`, in the machine's byte order."""
    return np.dtype(f"u{WIDTH[dtype]}")


def total_bytes(weights: Weights) -> int:
    """Bytes of all tensors, uncompressed."""
    return sum(tensor.bits.nbytes for tensor in weights.values())


def total_elements(weights: Weights) -> int:
    """Elements of all tensors."""
    return sum(tensor.bits.size for tensor in weights.values())


def copy_weights(weights: Weights) -> dict[str, TensorBits]:
    """The same bits in memory of their own."""
    return {name: TensorBits(tensor.dtype, tensor.bits.copy()) for name, tensor in weights.items()}


def table_hash(weights: Weights) -> str:
    """BLAKE3 of the names, dtypes and shapes, 64 hex digits: equal for equal tables, whatever order they come in."""
    rows = sorted((name, tensor.dtype, tensor.bits.shape) for name, tensor in weights.items())
    return blake3.blake3(msgspec.json.encode(rows)).hexdigest()


def check_same_table(old: Weights, new: Weights) -> None:
    """Raise ValueError, naming the tensor and both sides, unless names, dtypes and shapes are equal."""
    for name in sorted(old.keys() | new.keys()):
        sides = [str(table[name].meta) if name in table else "absent" for table in (old, new)]
        if sides[0] != sides[1]:
            raise ValueError(f"tensor {name}: {sides[0]} on one side, {sides[1]} on the other")


def groups(weights: Weights, limit: int) -> Iterator[dict[str, TensorBits]]:
    """The tensors in order of their names, in groups of at most `limit` bytes; a larger tensor is a group of its own.

    A table without tensors is one empty group.
    """
    group: dict[str, TensorBits] = {}
    size = 0
    for name in sorted(weights):
        tensor = weights[name]
        if group and size + tensor.bits.nbytes > limit:
            yield group
            group, size = {}, 0
        group[name] = tensor
        size += tensor.bits.nbytes
    yield group


def subset(weights: Weights, names: Iterable[str]) -> dict[str, TensorBits]:
    """The named tensors."""
    return {name: weights[name] for name in names}
