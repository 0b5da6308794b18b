"""One machine, seen from the fleet's process: requests over a stream socket, answered one after the other.

Invariant: a request that was not answered whole (cancelled, too late, connection lost) ends the machine, so an answer
is never taken for that of another request.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from etude.config.machines import MachinesConfig
from etude.machines.base import ExecResult, ExecStatus, WorkspaceError, check_argv, check_path, encode_text
from etude.machines.process.inside import frames
from etude.machines.process.inside.frames import Header
from etude.records import InfraError, UserError

GRACE_S = 30.0
"""Seconds beyond a request's own time after which a machine counts as lost; a loaded host delays everything."""


class ProcessMachine:
    """See `etude.machines.Machine`. Made by `ProcessFleet.open`."""

    def __init__(
        self,
        stream: socket.socket,
        config: MachinesConfig,
        running: asyncio.Semaphore,
        on_close: Callable[["ProcessMachine"], None],
    ) -> None:
        stream.setblocking(False)
        self._running = running
        self._stream = stream
        self._config = config
        self._on_close = on_close
        self._lock = asyncio.Lock()
        self._closed = False

    async def furnish(self, files: Mapping[str, str]) -> None:
        """Write all `files` in one request: the first one, whose answer says that the machine was made."""
        contents = {check_path(path): encode_text(path, text) for path, text in files.items()}
        size = sum(map(len, contents.values()))
        if size > self._config.workspace_mb << 20:
            raise UserError(
                f"machine files: {size} bytes; machines.workspace_mb = {self._config.workspace_mb} is too few"
            )
        sizes = [[path, len(data)] for path, data in contents.items()]
        await self._ask({"do": "write", "files": sizes}, b"".join(contents.values()))

    async def write(self, path: str, text: str) -> None:
        """Write a file of the workspace, making its folders. Raises WorkspaceError or InfraError."""
        await self.furnish({path: text})

    async def read(self, path: str) -> str:
        """The text of a file of the workspace, decoded with replacement.

        Raises WorkspaceError for what is missing, no regular file, above `read_kb` or behind a link that leads out.
        """
        _, body = await self._ask({"do": "read", "path": check_path(path)})
        return body.decode("utf-8", "replace")

    async def exec(self, argv: Sequence[str], timeout_s: float | None = None) -> ExecResult:
        """Run `argv` in the workspace; see `Machine.exec`."""
        limit_s = self._config.exec_timeout_s if timeout_s is None else timeout_s
        if not 0 < limit_s < 1e6:
            raise UserError(f"machine command: timeout_s = {limit_s}; expected a positive number of seconds")
        request = {"do": "exec", "argv": check_argv(argv), "timeout_s": limit_s}
        async with self._running:
            header, body = await self._ask(request, b"", limit_s)
        return ExecResult(
            status=ExecStatus(header["status"]),
            code=header["code"],
            output=body.decode("utf-8", "replace"),
            truncated=header["left_out"] > 0,
            seconds=header["seconds"],
            detail=header["detail"],
        )

    async def close(self) -> None:
        """End the machine and wait until its processes are gone. Never raises; may be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            with contextlib.suppress(OSError, TimeoutError):
                self._stream.shutdown(socket.SHUT_WR)
                # A request in flight sees the end of the stream and gives the lock back.
                async with asyncio.timeout(GRACE_S), self._lock:
                    while await asyncio.get_running_loop().sock_recv(self._stream, 1 << 16):
                        pass
        finally:
            self._drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _ask(self, header: Header, body: bytes = b"", seconds: float = 0.0) -> tuple[Header, bytes]:
        async with self._lock:
            if self._closed:
                raise InfraError("machine: it is closed")
            try:
                async with asyncio.timeout(seconds + GRACE_S):
                    await asyncio.get_running_loop().sock_sendall(self._stream, frames.pack(header, body))
                    answer, body = await self._receive()
            except BaseException as error:
                self._abandon()
                if isinstance(error, OSError | frames.Broken):  # TimeoutError is an OSError
                    raise InfraError(f"machine: lost during {header['do']} ({error or 'no answer'})") from None
                raise
            if "broken" in answer:
                self._abandon()
                raise InfraError(f"machine: could not be made ({answer['broken']})")
            if "refused" in answer:
                raise WorkspaceError(f"machine file {answer['refused']}")
            return answer, body

    async def _receive(self) -> tuple[Header, bytes]:
        header, body = frames.lengths(await self._exactly(frames.LENGTHS.size))
        return frames.parse(await self._exactly(header)), await self._exactly(body)

    async def _exactly(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < size:
            piece = await loop.sock_recv(self._stream, min(size - len(data), 1 << 16))
            if not piece:
                raise frames.Broken("its connection ended")
            data += piece
        return bytes(data)

    def _abandon(self) -> None:
        """Close without waiting: the machine's first process sees the end of its stream and kills everything."""
        if not self._closed:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        self._stream.close()
        self._on_close(self)
