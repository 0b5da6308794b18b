"""What every kind of machine promises, whatever isolates it.

Invariants:
* what a program does to its machine is an `ExecResult` or a `WorkspaceError`, never an `InfraError`;
* an `InfraError` says nothing about the program: the attempt is repeated and no reward is drawn from it;
* a machine starts with the files it was given and nothing else, and nothing it runs survives `close`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, Self

import msgspec

from etude.records import UserError


class ExecStatus(StrEnum):
    """How a program ended."""

    OK = "ok"  # exit status 0
    ERROR = "error"  # another exit status, or a signal of its own doing
    TIMEOUT = "timeout"  # wall or CPU seconds used up
    LIMIT = "limit"  # memory, processes, output or disk used up


class ExecResult(msgspec.Struct, frozen=True):
    """What one program did.

    code:      exit status; -N when signal N ended it; None when the machine stopped it.
    output:    stdout and stderr in the order they arrived, UTF-8 decoded with replacement.
    truncated: a middle part of the output was left out; a line in `output` says how much.
    seconds:   wall time from its start until its last process was gone.
    detail:    one line for people: which limit it was. Empty for OK and ERROR.
    """

    status: ExecStatus
    code: int | None
    output: str
    truncated: bool = False
    seconds: float = 0.0
    detail: str = ""


class WorkspaceError(UserError):
    """A file that cannot be read or written as asked: a path that leads out, missing, too large, the disk full.

    The message names the path and may be shown to the agent, whose doing it usually is.
    """


class Machine(Protocol):
    """One isolated computer. Calls on one machine are carried out one after the other."""

    async def write(self, path: str, text: str) -> None:
        """Write a file of the workspace, making its folders. Raises WorkspaceError or InfraError."""
        ...

    async def read(self, path: str) -> str:
        """The text of a workspace file, decoded with replacement. Raises WorkspaceError or InfraError."""
        ...

    async def exec(self, argv: Sequence[str], timeout_s: float | None = None) -> ExecResult:
        """Run a program in the workspace until it ends or a limit ends it; every process it started is then gone.

        timeout_s: wall seconds; None takes the config's. Raises UserError for an argv that cannot be one, InfraError.
        """
        ...

    async def close(self) -> None:
        """End everything in the machine and drop its files. Never raises; may be called twice."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


class Fleet(Protocol):
    """Where machines come from."""

    async def open(self, files: Mapping[str, str]) -> Machine:
        """A fresh machine holding `files` (relative path -> text). Waits while too many are open.

        Raises UserError (WorkspaceError) for a path that is absolute, empty or has `..` and for files too large for
        the workspace; InfraError when no machine could be made.
        """
        ...

    async def close(self) -> None:
        """Close every machine that is still open, and the fleet. Never raises; may be called twice."""
        ...


def check_path(path: str) -> str:
    """Return `path` if it names a place inside a workspace, else raise WorkspaceError."""
    parts = path.split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise WorkspaceError(
            f"machine file {path[:80]!r}: expected a relative path such as 'src/app.py', without '.' or '..'"
        )
    if "\0" in path or len(encode_text(path, path)) > 1024 or any(len(part.encode()) > 255 for part in parts):
        raise WorkspaceError(f"machine file {path[:80]!r}: expected at most 1024 bytes, 255 a part, without NUL")
    return path


def check_argv(argv: Sequence[str]) -> list[str]:
    """Return `argv` as a list if it can be a command, else raise UserError."""
    if isinstance(argv, str) or not argv or not argv[0]:
        raise UserError(f"machine command {argv!r}: expected a list of words such as ['python', 'app.py']")
    size = sum(len(word.encode("utf-8", "surrogatepass")) for word in argv)
    if size > 128 * 1024 or any("\0" in word or _surrogate(word) for word in argv):
        raise UserError(
            f"machine command {argv[0][:80]!r}: {size} bytes; expected at most 131072 of UTF-8, without NUL"
        )
    return list(argv)


def encode_text(path: str, text: str) -> bytes:
    """`text` as the bytes of file `path`. Raises WorkspaceError for lone surrogates, which UTF-8 cannot hold."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise WorkspaceError(f"machine file {path[:80]!r}: no UTF-8 ({error.reason} at {error.start})") from None


def _surrogate(word: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in word)
