"""The parent's side of an exec: collect output, keep the limits, and leave nothing alive.

Invariants: `run` holds at most the output limit in memory, returns within a tick of the deadline, and every process of
the machine but this one is dead when it returns.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from . import program
from .frames import Header

TICK_S = 0.1  # reading /proc for 16 processes takes 0.2 ms
PIECE = 1 << 16
PAGE = os.sysconf("SC_PAGE_SIZE")
SHARED = 14 << 20
"""Resident size of a fork of the zygote: not counted, or 16 idle processes would seem to fill 224 MiB."""


class Hangup(Exception):
    """The fleet closed its end during an exec: nobody waits for this program any more."""


class Places(NamedTuple):
    """Descriptors: the workspace, a /proc that shows every process of the machine, the socket to the fleet."""

    workspace: int
    processes: int
    control: int


class Output:
    """The first and the last `keep // 2` bytes of a stream, and its length."""

    def __init__(self, keep: int) -> None:
        self._half = keep // 2
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half + PIECE:
            del self._tail[: -self._half]

    @property
    def left_out(self) -> int:
        """Bytes that `text` does not show."""
        return max(0, self.total - 2 * self._half)

    def text(self) -> bytes:
        tail = bytes(self._tail[-self._half :])
        if not self.left_out:
            return bytes(self._head) + tail
        return bytes(self._head) + f"\n[... {self.left_out} bytes left out ...]\n".encode() + tail


def run(argv: Sequence[str], timeout_s: float, places: Places, limits: dict[str, int]) -> tuple[Header, bytes]:
    """Run `argv` to its end and return the reply of an exec. Raises Hangup, after killing, when the control closes."""
    source, sink = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        program.become(argv, sink, places.workspace, limits)
    os.close(sink)
    output = Output(limits["output_kb"] << 10)
    handle = os.pidfd_open(child)
    ended: list[tuple[int, float]] = []  # wait status and CPU seconds of `child`
    try:
        stopped = _wait(child, handle, source, places, started + timeout_s, output, limits, ended)
    finally:
        os.close(handle)
        _kill_all(child, ended)
        if output.total <= limits["flood_mb"] << 20:
            _drain(source, output, limits["flood_mb"] << 20)
        os.close(source)
    status, cpu_s = ended[0]
    header = _judge(stopped, status, cpu_s, places.workspace, limits, timeout_s)
    return {**header, "seconds": time.monotonic() - started, "left_out": output.left_out}, output.text()


def _wait(
    child: int, handle: int, source: int, places: Places, deadline: float,
    output: Output, limits: dict[str, int], ended: list[tuple[int, float]],
) -> str:  # fmt: skip
    """Collect output until `child` ends ("") or a limit is reached (its name)."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(handle, select.POLLIN)
    poll.register(places.control, select.POLLRDHUP)
    look = time.monotonic() + TICK_S
    while True:
        now = time.monotonic()
        if now >= deadline:
            return "time"
        events = dict(poll.poll(1000 * max(0.0, min(deadline, look) - now)))
        if places.control in events:
            raise Hangup
        if source in events:
            data = os.read(source, PIECE)
            output.add(data)
            if not data:
                poll.unregister(source)
            if output.total > limits["flood_mb"] << 20:
                return "output"
        if handle in events:
            return ""
        if time.monotonic() >= look:
            look = time.monotonic() + TICK_S
            _reap(child, ended, os.WNOHANG)
            excess = _excess(places.processes, limits)
            if excess or ended:
                return excess


def _kill_all(child: int, ended: list[tuple[int, float]]) -> None:
    """This process is the first of its pid namespace, so -1 is every other process in it and no fork slips through."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    _reap(child, ended, 0)


def _reap(child: int, ended: list[tuple[int, float]], options: int) -> None:
    """Collect dead processes: orphans are forgotten, `child` is remembered."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait4(-1, options)
            if pid == 0:
                return
            if pid == child:
                ended.append((status, usage.ru_utime + usage.ru_stime))


def _drain(source: int, output: Output, most: int) -> None:
    """Read what dead writers left in the pipe."""
    while output.total <= most and (data := os.read(source, PIECE)):
        output.add(data)


def _excess(processes: int, limits: dict[str, int]) -> str:
    """Name of the limit that the machine's processes exceed together, or ""."""
    used = [_use(processes, name) for name in os.listdir(processes) if name.isdecimal() and name != "1"]
    if sum(threads for threads, _ in used) > limits["processes"]:
        return "processes"
    return "memory" if sum(size for _, size in used) > limits["memory_mb"] << 20 else ""


def _use(processes: int, pid: str) -> tuple[int, int]:
    """Threads of a process, and its bytes in memory beyond what it shares with the zygote."""
    try:
        handle = os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=processes)
        with open(handle, "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0  # it ended meanwhile
    return int(fields[17]), max(0, int(fields[21]) * PAGE - SHARED)


def _judge(stopped: str, status: int, cpu_s: float, workspace: int, limits: dict[str, int], timeout_s: float) -> Header:
    """Status, exit code and one line of detail."""
    said = {
        "time": ("timeout", f"more than {timeout_s:g} s"),
        "memory": ("limit", f"more than {limits['memory_mb']} MiB of memory"),
        "processes": ("limit", f"more than {limits['processes']} processes"),
        "output": ("limit", f"more than {limits['flood_mb']} MiB of output"),
    }
    code: int | None = os.waitstatus_to_exitcode(status)
    if stopped:
        kind, detail = said[stopped]
        return {"status": kind, "code": None, "detail": detail}
    if code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s > limits["cpu_s"] - 0.1:
        return {"status": "timeout", "code": None, "detail": f"more than {limits['cpu_s']} s of CPU"}
    if code == -program.LIMIT_SIGNAL:
        return {"status": "limit", "code": None, "detail": "memory, processes or disk used up"}
    if code == -signal.SIGXFSZ or (code and _full(workspace)):
        return {"status": "limit", "code": code, "detail": f"more than {limits['workspace_mb']} MiB of files"}
    return {"status": "error" if code else "ok", "code": code, "detail": ""}


def _full(workspace: int) -> bool:
    space = os.fstatvfs(workspace)
    return space.f_bavail == 0 or space.f_favail == 0
