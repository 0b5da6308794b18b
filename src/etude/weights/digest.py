"""The state digest: one number for the bits of all weights, whatever their layout.

Invariant: the digest of a set of elements is the sum of one keyed mix per element, so it does not depend on order,
shards of a tensor sum to the whole, and a change costs only the changed elements. Equal weights give equal digests on
every machine; a flipped bit, two swapped elements or two swapped tensors give another one.

For an element with flat index i (C order) and bits b in a tensor (name, dtype, shape), all modulo 2^64:

    key0, key1 = the first 16 bytes of BLAKE3(TAG + JSON [name, dtype, shape]), two little-endian words
    p = key + i * GAMMA;  z = (p ^ (p >> 32)) + b
    z = (z ^ (z >> 30)) * A;  z = (z ^ (z >> 27)) * B;  lane += z ^ (z >> 31)

with constants of its own for each lane. Two multiplications after the bits went in are needed: with one, two elements
that flip the same bit in opposite directions cancel in the upper half of a lane. The digest guards against accidents,
not against forgery; blobs are named by BLAKE3. An empty tensor adds nothing: `table_hash` covers names and shapes.

Measured on one core that others shared (AVX-512): 1.6 GB/s of bf16 by the clock, 3.3 GB/s of CPU time; 0.6 ns for each
single element.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import blake3
import msgspec
import numba
import numpy as np

from etude.weights.tensors import TensorBits, TensorMeta, Weights, WeightsError

TAG = b"etude state digest 1\0"
_MASK = (1 << 64) - 1
_CHUNK = 1 << 22  # elements that one thread takes at a time

GAMMA0, GAMMA1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
A0, A1 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0xFF51AFD7ED558CCD)
B0, B1 = np.uint64(0x94D049BB133111EB), np.uint64(0xC4CEB9FE1A85EC53)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@dataclass(frozen=True, slots=True)
class Digest:
    """Two lanes of 64 bits; they add and subtract modulo 2^64. `Digest()` is the digest of nothing."""

    lane0: int = 0
    lane1: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        return Digest((self.lane0 + other.lane0) & _MASK, (self.lane1 + other.lane1) & _MASK)

    def __sub__(self, other: "Digest") -> "Digest":
        return Digest((self.lane0 - other.lane0) & _MASK, (self.lane1 - other.lane1) & _MASK)

    def hex(self) -> str:
        """32 hex digits, lane 0 first: the digest of a `PolicyVersion`."""
        return f"{self.lane0:016x}{self.lane1:016x}"

    @staticmethod
    def parse(text: str) -> "Digest":
        """Read what `hex` wrote. Raises WeightsError for anything else."""
        if len(text) != 32 or not set(text) <= set("0123456789abcdef"):
            raise WeightsError(f"digest: expected 32 hex digits, got {text[:80]!r}")
        return Digest(int(text[:16], 16), int(text[16:], 16))


def state_digest(weights: Weights, threads: int = 1) -> Digest:
    """The digest of all tensors. `threads`: how many share the work; the result does not depend on it."""

    def chunks() -> Iterator[tuple[str, TensorMeta, np.ndarray, int]]:
        for name, tensor in weights.items():
            for start in range(0, tensor.bits.size, _CHUNK):
                yield name, tensor.meta, tensor.flat[start : start + _CHUNK], start

    if threads == 1:
        return sum((_run_digest(*chunk) for chunk in chunks()), Digest())
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda chunk: _run_digest(*chunk), chunks()), Digest())


def tensor_digest(name: str, tensor: TensorBits, start_index: int = 0, shape: tuple[int, ...] | None = None) -> Digest:
    """The part of one tensor in the state digest.

    For a shard that is a run of the tensor's flat order, `start_index` is where it starts and `shape` the shape of the
    whole tensor; shards of other layouts are sums of runs, or go through `elements_digest`.
    """
    meta = tensor.meta if shape is None else TensorMeta(tensor.dtype, shape)
    return _run_digest(name, meta, tensor.flat, start_index)


def elements_digest(name: str, meta: TensorMeta, index: np.ndarray, bits: np.ndarray) -> Digest:
    """The part of single elements: index [n] flat indices into the whole tensor, bits [n] as unsigned integers."""
    if index.shape != bits.shape:
        raise ValueError(f"tensor {name}: {index.shape} indices for {bits.shape} elements")
    return Digest(*map(int, _sum_elements(index, bits, *_keys(name, meta))))


def digest_change(name: str, meta: TensorMeta, index: np.ndarray, old_bits: np.ndarray, new_bits: np.ndarray) -> Digest:
    """What to add to a state digest when the elements at `index` [n] turn from `old_bits` [n] into `new_bits` [n]."""
    return elements_digest(name, meta, index, new_bits) - elements_digest(name, meta, index, old_bits)


def _run_digest(name: str, meta: TensorMeta, flat: np.ndarray, start: int) -> Digest:
    return Digest(*map(int, _sum_run(flat, np.uint64(start), *_keys(name, meta))))


def _keys(name: str, meta: TensorMeta) -> tuple[np.uint64, np.uint64]:
    digest = blake3.blake3(TAG + msgspec.json.encode([name, meta.dtype, meta.shape])).digest()
    return np.uint64(int.from_bytes(digest[:8], "little")), np.uint64(int.from_bytes(digest[8:16], "little"))


@numba.njit(nogil=True, cache=True, inline="always")
def _mix(place, bits, first, second):  # type: ignore[no-untyped-def]
    z = (place ^ (place >> _S32)) + bits
    z = (z ^ (z >> _S30)) * first
    z = (z ^ (z >> _S27)) * second
    return z ^ (z >> _S31)


@numba.njit(nogil=True, cache=True)
def _sum_run(flat, start, key0, key1):  # type: ignore[no-untyped-def]
    lane0, lane1 = np.uint64(0), np.uint64(0)
    for i in range(flat.size):
        place, bits = start + np.uint64(i), np.uint64(flat[i])
        lane0 += _mix(key0 + place * GAMMA0, bits, A0, B0)
        lane1 += _mix(key1 + place * GAMMA1, bits, A1, B1)
    return lane0, lane1


@numba.njit(nogil=True, cache=True)
def _sum_elements(index, values, key0, key1):  # type: ignore[no-untyped-def]
    lane0, lane1 = np.uint64(0), np.uint64(0)
    for i in range(index.size):
        place, bits = np.uint64(index[i]), np.uint64(values[i])
        lane0 += _mix(key0 + place * GAMMA0, bits, A0, B0)
        lane1 += _mix(key1 + place * GAMMA1, bits, A1, B1)
    return lane0, lane1
