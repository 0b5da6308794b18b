"""Weights to test with, and slow references that are written from the definition alone."""

import math
import struct
from collections.abc import Mapping

import blake3
import numpy as np
from hypothesis import strategies as st

from etude.weights import Digest, TensorBits, Weights
from etude.weights.delta import _HASHED_AT, _HEADER_AT

MASK = (1 << 64) - 1
LANES = (
    (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB),
    (0xD1B54A32D192ED03, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53),
)


def reference_digest(weights: Weights) -> Digest:
    """The definition in docs/weights.md in plain integers."""
    lanes = [0, 0]
    for name, tensor in weights.items():
        shape = ",".join(map(str, tensor.bits.shape))
        named = f'["{name}","{tensor.dtype}",[{shape}]]'.encode()
        keys = struct.unpack("<QQ", blake3.blake3(b"etude state digest 1\0" + named).digest()[:16])
        for i, bits in enumerate(tensor.bits.ravel().tolist()):
            for lane, (gamma, first, second) in enumerate(LANES):
                place = (keys[lane] + i * gamma) & MASK
                z = ((place ^ (place >> 32)) + bits) & MASK
                z = ((z ^ (z >> 30)) * first) & MASK
                z = ((z ^ (z >> 27)) * second) & MASK
                lanes[lane] = (lanes[lane] + (z ^ (z >> 31))) & MASK
    return Digest(*lanes)


def bf16(rng: np.random.Generator, *shape: int) -> TensorBits:
    """Weights of a plausible size as bf16 bits."""
    return TensorBits("bfloat16", (rng.normal(0, 0.02, shape).astype("<f4").view("<u4") >> 16).astype(np.uint16))


def model(seed: int = 0) -> dict[str, TensorBits]:
    """A few tensors of different dtypes; a scalar and an empty one among them; the bits are writable."""
    rng = np.random.default_rng(seed)
    return {
        "embed.weight": bf16(rng, 64, 32),
        "layers.0.experts.0.up.weight": bf16(rng, 16, 32),
        "layers.0.experts.1.up.weight": bf16(rng, 16, 32),
        "router.bias": TensorBits("float32", rng.normal(0, 1, 8).astype(np.float32).view(np.uint32)),
        "scale": TensorBits("float32", np.array(0x3F800000, np.uint32)),
        "unused": TensorBits("bfloat16", np.zeros((0, 32), np.uint16)),
    }


def train(weights: Weights, seed: int, share: float = 0.02) -> None:
    """Change a share of the elements in place by one unit in the last place, at least one element of the table."""
    rng = np.random.default_rng(seed)
    for tensor in weights.values():
        changed = rng.random(tensor.bits.size) < share
        tensor.flat[changed] += tensor.bits.dtype.type(1)
    largest = max(weights.values(), key=lambda tensor: tensor.bits.size)
    largest.flat[rng.integers(largest.bits.size)] ^= 1


def same(first: Weights, second: Weights) -> bool:
    """Whether two tables are equal bit for bit."""
    return first.keys() == second.keys() and all(
        first[name].meta == second[name].meta and np.array_equal(first[name].bits, second[name].bits) for name in first
    )


def reseal(blob: bytes) -> bytes:
    """Give a forged blob the hash it needs to be looked at."""
    fixed, body = blob[:_HASHED_AT], blob[_HEADER_AT:]
    return fixed + blake3.blake3(fixed + body).digest() + body


_DTYPES = {"uint8": np.uint8, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}


@st.composite
def tables(draw: st.DrawFn) -> dict[str, TensorBits]:
    """Small tables of every width, with any bits: NaN payloads, infinities, -0.0."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    rows = draw(st.dictionaries(st.text(max_size=8), st.tuples(st.sampled_from(sorted(_DTYPES)), shapes), max_size=4))
    return {name: TensorBits(dtype, _bits(rng, dtype, shape)) for name, (dtype, shape) in rows.items()}


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[str, TensorBits], dict[str, TensorBits]]:
    """Two states of one table; each tensor is unchanged, partly changed or new all over."""
    old = draw(tables())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    new = {}
    for name, tensor in old.items():
        share = draw(st.sampled_from([0.0, 0.3, 1.0]))
        other = _bits(rng, tensor.dtype, tensor.bits.shape)
        taken = np.where(rng.random(tensor.bits.shape) < share, other, tensor.bits).astype(tensor.bits.dtype)
        new[name] = TensorBits(tensor.dtype, taken)
    return old, new


def _bits(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = np.dtype(_DTYPES[dtype])
    return np.frombuffer(rng.bytes(math.prod(shape) * kind.itemsize), kind).reshape(shape).copy()


def as_dict(weights: Mapping[str, TensorBits]) -> dict[str, bytes]:
    """A snapshot to compare with later."""
    return {name: tensor.bits.tobytes() for name, tensor in weights.items()}
