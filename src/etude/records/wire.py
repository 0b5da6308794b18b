"""Records as bytes: MessagePack, with numpy arrays as {dtype, shape, data}, little-endian and in C order.

Invariant: `decode(encode(r), type(r))` equals `r` bit for bit, and bytes that do not match the type raise ValueError
before anything of their declared size is allocated.
"""

from typing import Any, TypeVar

import msgspec
import numpy as np

T = TypeVar("T")

_DTYPES = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"})


def encode(record: Any) -> bytes:
    """Serialise a record of this room. Raises ValueError for an array of a dtype that the wire does not carry."""
    return msgspec.msgpack.encode(record, enc_hook=_array_to_wire)


def decode(data: bytes, kind: type[T]) -> T:
    """Read a record of type `kind`. Raises ValueError when the bytes are not one."""
    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=_array_from_wire)
    except RecursionError:  # thousands of nested containers, in a field that the record does not even have
        raise ValueError(f"{kind.__name__} on the wire: nested too deeply to be one") from None


def _array_to_wire(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.name not in _DTYPES:
            raise ValueError(f"array on the wire: {value.dtype} is not one of {', '.join(sorted(_DTYPES))}")
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)  # `name` does not tell the byte order
        return {"dtype": value.dtype.name, "shape": list(value.shape), "data": little.tobytes()}
    raise NotImplementedError(f"records hold no {type(value).__name__}")


def _array_from_wire(kind: type, value: Any) -> Any:
    if kind is not np.ndarray:
        raise NotImplementedError(f"records hold no {kind.__name__}")
    if not isinstance(value, dict) or value.get("dtype") not in _DTYPES:
        raise ValueError(
            f"array on the wire: expected {{dtype, shape, data}} with a known dtype, got {str(value)[:80]}"
        )
    dtype, shape, data = np.dtype(value["dtype"]).newbyteorder("<"), value.get("shape"), value.get("data")
    if not (isinstance(shape, list) and all(isinstance(n, int) and n >= 0 for n in shape) and isinstance(data, bytes)):
        raise ValueError("array on the wire: shape must be a list of sizes and data must be bytes")
    expected = dtype.itemsize
    for size in shape:
        expected *= size
    if expected != len(data):
        raise ValueError(f"array on the wire: {dtype}{shape} needs {expected} bytes, got {len(data)}")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))
