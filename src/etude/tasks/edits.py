"""The one way an agent changes a file: replace a piece of one line.

Invariant: an edit changes exactly the one occurrence that the agent named, or nothing.
"""


class EditError(ValueError):
    """The edit does not apply. The message is short and meant for the agent."""


def apply_edit(text: str, line: int, old: str, new: str) -> str:
    """`text` with `old` replaced by `new` in line `line` (1 is the first). Everything else stays as it is.

    Raises EditError when there is no such line, or when `old` is empty or does not occur exactly once in it.
    """
    lines = text.split("\n")
    count = len(lines) - (lines[-1] == "")  # a final newline ends the last line, it does not start another
    if not 1 <= line <= count:
        raise EditError(f"no line {line}")
    if not old:
        raise EditError("old text is empty")
    at = lines[line - 1].find(old)
    if at < 0:
        raise EditError(f"old text not found in line {line}")
    if not occurs_once(lines[line - 1], old):
        raise EditError(f"old text found more than once in line {line}")
    lines[line - 1] = lines[line - 1][:at] + new + lines[line - 1][at + len(old) :]
    return "\n".join(lines)


def occurs_once(text: str, piece: str) -> bool:
    """Whether a non-empty `piece` stands in `text` exactly once; overlapping places count, unlike in `str.count`."""
    at = text.find(piece)
    return at >= 0 and text.find(piece, at + 1) < 0
