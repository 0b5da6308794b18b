"""Messages between a fleet and one of its machines.

Invariant: a frame is read whole or not at all, and neither side allocates more than the sizes below for one frame.
A frame is `header bytes, body bytes` (two unsigned 32-bit numbers, big-endian), then the header as a JSON object,
then the body: raw bytes, the contents of files or a program's output.
"""

import json
import struct
from collections.abc import Callable
from typing import Any

LENGTHS = struct.Struct(">II")
MAX_HEADER = 4 << 20
MAX_BODY = 1 << 30

Header = dict[str, Any]


class Broken(Exception):
    """The other side is gone or sent something that is no frame."""


def pack(header: Header, body: bytes = b"") -> bytes:
    """One frame. Raises ValueError, with both sizes, when a part is too large to be sent."""
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    if len(text) > MAX_HEADER or len(body) > MAX_BODY:
        raise ValueError(f"frame of {len(text)} + {len(body)} bytes; at most {MAX_HEADER} + {MAX_BODY} can be sent")
    return LENGTHS.pack(len(text), len(body)) + text + body


def lengths(prefix: bytes) -> tuple[int, int]:
    """Sizes of header and body from the first `LENGTHS.size` bytes. Raises Broken when they cannot be right."""
    header, body = LENGTHS.unpack(prefix)
    if header > MAX_HEADER or body > MAX_BODY:
        raise Broken(f"announced {header} + {body} bytes, at most {MAX_HEADER} + {MAX_BODY} are allowed")
    return header, body


def parse(text: bytes) -> Header:
    """The header as a dict. Raises Broken when it is not one."""
    try:
        header = json.loads(text)
    except ValueError as error:
        raise Broken(f"header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise Broken("header is no JSON object")
    return header


def receive(read: Callable[[int], bytes]) -> tuple[Header, bytes] | None:
    """Read one frame through a blocking `read(at most n bytes)`. None at the end of the stream.

    Raises Broken when the stream ends inside a frame.
    """
    first = read(LENGTHS.size)
    if not first:
        return None
    header, body = lengths(first + _exactly(read, LENGTHS.size - len(first)))
    return parse(_exactly(read, header)), _exactly(read, body)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = read(min(size - len(data), 1 << 20))
        if not piece:
            raise Broken(f"stream ended after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)
