"""Blobs: the bytes of a delta or a base, and how they get into memory.

Invariant: relative on the wire, absolute in memory. A delta is coded against the old bits, so it is small; what is
staged are new values (and the old ones, to undo), so committing twice, resuming or rolling back cannot corrupt
anything. Equal weights give equal bytes. Bytes that are damaged, hostile or made for other tensors raise WeightsError
before anything of their declared size is allocated, and nothing but `commit` and `undo` writes to live memory.

A blob, little-endian:

    0   magic "ETWB"        8   u64 length of the header
    4   u16 version, 1      16  BLAKE3 (32 bytes) of bytes 0 to 16 and of all that follows it
    6   u16 kind            48  header: MessagePack array of [name, dtype, shape, coding, bytes], sorted by name
                            ..  payloads in the order of the header, each one zstd frame that states its content size

kind 0 is a delta, kind 1 a base. coding 0: XOR of old and new bits; coding 1: the new bits. A delta leaves unchanged
tensors out and takes the smaller coding of each other one; a base has all its tensors in coding 1.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

import blake3
import msgspec
import numpy as np
import zstandard

from etude.weights.tensors import WIDTH, TensorBits, TensorMeta, Weights, WeightsError, bits_dtype, check_same_table

MAGIC, VERSION = b"ETWB", 1
_FIXED = struct.Struct("<4sHHQ")
_HASHED_AT, _HEADER_AT = _FIXED.size, _FIXED.size + 32
_LEVEL = 3
_MOST_EXPANSION = (128 << 10) // 4  # zstd's tightest block: 128 KiB of one byte, said in 4 bytes


class _Kind(IntEnum):
    DELTA = 0
    BASE = 1


class _Coding(IntEnum):
    XOR = 0
    FULL = 1


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    coding: _Coding
    size: int

    @property
    def meta(self) -> TensorMeta:
        return TensorMeta(self.dtype, self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class StagedTensor:
    """Changes of one tensor, ready to scatter.

    index: [n] ascending flat indices, uint32, or int64 where the tensor is larger; new, old: [n] bits.
    """

    name: str
    index: np.ndarray
    new: np.ndarray
    old: np.ndarray


def encode_delta(old: Weights, new: Weights) -> bytes:
    """The change from `old` to `new`. Raises ValueError, naming the tensor, when the tables differ."""
    check_same_table(old, new)
    parts = []
    for name in sorted(new):
        tensor = new[name]
        changed_bits = tensor.flat ^ old[name].flat
        if changed_bits.any():
            coded = ((_Coding.XOR, _compress(changed_bits)), (_Coding.FULL, _compress(tensor.flat)))
            coding, payload = min(coded, key=lambda pair: len(pair[1]))
            parts.append((_Entry(name, tensor.dtype, tensor.bits.shape, coding, len(payload)), payload))
    return _pack(_Kind.DELTA, parts)


def encode_full(weights: Weights) -> bytes:
    """All tensors, for a base."""
    parts = []
    for name in sorted(weights):
        tensor = weights[name]
        payload = _compress(tensor.flat)
        parts.append((_Entry(name, tensor.dtype, tensor.bits.shape, _Coding.FULL, len(payload)), payload))
    return _pack(_Kind.BASE, parts)


def decode_full(blob: bytes) -> dict[str, TensorBits]:
    """The tensors of a base, in memory of their own. Raises WeightsError when the bytes are not a base.

    Allocates what the blob declares, at most 32,768 times its size; `stage_full` is for blobs that are not trusted.
    """
    return {
        entry.name: TensorBits(entry.dtype, _decompress(entry, payload).copy().reshape(entry.shape))
        for entry, payload in _unpack(blob, _Kind.BASE)
    }


def stage_delta(blob: bytes, old: Weights) -> list[StagedTensor]:
    """Decode a delta against the bits it was made from; nothing is written.

    Raises WeightsError when the bytes are not a delta or it was made for other tensors. Whether `old` has the right
    values cannot be seen here: compare digests first.
    """
    staged = []
    for entry, payload in _unpack(blob, _Kind.DELTA, old):
        held = old[entry.name].flat
        decoded = _decompress(entry, payload)
        new = decoded ^ held if entry.coding is _Coding.XOR else decoded
        staged += _diff(entry.name, held, new)
    return staged


def stage_full(blob: bytes, old: Weights) -> list[StagedTensor]:
    """Decode a base and stage where it differs from `old`; errors as for `stage_delta`."""
    staged = []
    for entry, payload in _unpack(blob, _Kind.BASE, old):
        staged += _diff(entry.name, old[entry.name].flat, _decompress(entry, payload))
    return staged


def diff_weights(old: Weights, new: Weights) -> list[StagedTensor]:
    """What turns `old` into `new`, by name. Raises ValueError, naming the tensor, when the tables differ."""
    check_same_table(old, new)
    return [staged for name in sorted(new) for staged in _diff(name, old[name].flat, new[name].flat)]


def commit(staged: Sequence[StagedTensor], live: Weights) -> None:
    """Write the new values into `live`. Repeating it changes nothing.

    Raises WeightsError, with nothing written, when a staged tensor does not fit its live one.
    """
    _scatter([(tensor, tensor.new) for tensor in staged], live)


def undo(staged: Sequence[StagedTensor], live: Weights) -> None:
    """Write the old values back, wherever a `commit` of the same changes stopped."""
    _scatter([(tensor, tensor.old) for tensor in staged], live)


def _scatter(writes: Sequence[tuple[StagedTensor, np.ndarray]], live: Weights) -> None:
    for tensor, values in writes:
        if tensor.name not in live:
            raise WeightsError(f"tensor {tensor.name}: staged, but absent from the live weights")
        target = live[tensor.name].flat
        if values.dtype != target.dtype or (tensor.index.size and int(tensor.index[-1]) >= target.size):
            raise WeightsError(
                f"tensor {tensor.name}: staged {values.dtype} up to element {tensor.index[-1:]}, "
                f"live {target.dtype} of {target.size} elements"
            )
    for tensor, values in writes:
        live[tensor.name].flat[tensor.index] = values


def _diff(name: str, old: np.ndarray, new: np.ndarray) -> list[StagedTensor]:
    """Zero or one staged tensor; its values are copies, so later changes of `old` and `new` do not reach it."""
    changed = np.flatnonzero(old != new)
    if not changed.size:
        return []
    index = changed.astype(np.uint32) if old.size <= 1 << 32 else changed
    return [StagedTensor(name, index, new[changed], old[changed])]


def _compress(flat: np.ndarray) -> bytes:
    little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(little.view(np.uint8).data)


def _decompress(entry: _Entry, payload: memoryview) -> np.ndarray:
    """The bits of one payload, flat and read-only. All sizes are checked before zstd may allocate."""
    dtype, expected = bits_dtype(entry.dtype), WIDTH[entry.dtype] * prod(entry.shape)
    try:
        declared = zstandard.get_frame_parameters(payload).content_size
        if declared != expected or expected > _MOST_EXPANSION * len(payload):
            raise WeightsError(
                f"blob: tensor {entry.name} of {entry.meta} needs {expected} bytes, "
                f"its frame of {len(payload)} bytes declares {declared}"
            )
        raw = zstandard.ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WeightsError(f"blob: tensor {entry.name} cannot be decompressed: {error}") from None
    if len(raw) != expected:
        raise WeightsError(f"blob: tensor {entry.name} needs {expected} bytes, got {len(raw)}")
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype, copy=False)


def _pack(kind: _Kind, parts: Sequence[tuple[_Entry, bytes]]) -> bytes:
    header = msgspec.msgpack.encode([entry for entry, _ in parts])
    fixed = _FIXED.pack(MAGIC, VERSION, kind, len(header))
    body = b"".join((header, *(payload for _, payload in parts)))
    return b"".join((fixed, blake3.blake3(fixed).update(body).digest(), body))


def _unpack(blob: bytes, kind: _Kind, held: Weights | None = None) -> Iterator[tuple[_Entry, memoryview]]:
    """Entries and payloads, after every length and, where `held` is given, every dtype and shape was checked."""
    if len(blob) < _HEADER_AT:
        raise WeightsError(f"blob: {len(blob)} bytes, but its fixed part has {_HEADER_AT}")
    magic, version, found, header_size = _FIXED.unpack_from(blob)
    if magic != MAGIC or version != VERSION:
        raise WeightsError(f"blob: starts with {magic!r} version {version}, expected {MAGIC!r} version {VERSION}")
    if found != kind:
        raise WeightsError(f"blob: expected a {kind.name.lower()} (kind {kind:d}), got kind {found}")
    view = memoryview(blob)
    body = view[_HEADER_AT:]
    if header_size > len(body):
        raise WeightsError(f"blob: declares a header of {header_size} bytes, only {len(body)} follow")
    if blake3.blake3(view[:_HASHED_AT]).update(body).digest() != view[_HASHED_AT:_HEADER_AT]:
        raise WeightsError(f"blob: the {len(blob)} bytes do not have the BLAKE3 they declare; damaged on the way")
    try:
        entries = msgspec.msgpack.decode(body[:header_size], type=list[_Entry])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WeightsError(f"blob: the header cannot be read: {error}") from None
    _check_entries(entries, kind, len(body) - header_size, held)
    return _payloads(entries, body[header_size:])


def _possible(shape: tuple[int, ...]) -> bool:
    """Whether numpy can hold it: up to 64 axes, and sizes whose product, empty axes left out, is an int64 of bytes."""
    return len(shape) <= 64 and min(shape, default=0) >= 0 and prod(max(size, 1) for size in shape) < 1 << 60


def _payloads(entries: Sequence[_Entry], payloads: memoryview) -> Iterator[tuple[_Entry, memoryview]]:
    start = 0
    for entry in entries:
        yield entry, payloads[start : start + entry.size]
        start += entry.size


def _check_entries(entries: Sequence[_Entry], kind: _Kind, payload_bytes: int, held: Weights | None) -> None:
    names = [entry.name for entry in entries]
    if any(first >= second for first, second in itertools.pairwise(names)):
        raise WeightsError("blob: its tensors are not sorted by name, or one comes twice")
    for entry in entries:
        if entry.dtype not in WIDTH or not _possible(entry.shape) or entry.size < 0:
            raise WeightsError(f"blob: impossible tensor {entry.name}: {entry.meta} in {entry.size} bytes")
        if kind is _Kind.BASE and entry.coding is not _Coding.FULL:
            raise WeightsError(f"blob: tensor {entry.name} of a base is coded as a change")
        if held is not None:
            own = held[entry.name].meta if entry.name in held else None
            if own != entry.meta:
                raise WeightsError(f"blob: tensor {entry.name} is {entry.meta}, here {own or 'absent'}")
    if sum(entry.size for entry in entries) != payload_bytes:
        declared = sum(entry.size for entry in entries)
        raise WeightsError(f"blob: payloads of {declared} bytes declared, {payload_bytes} follow")
