"""The zygote, and the machines it forks.

Invariants:
* the zygote runs no program and holds no file of any machine: its state is the same before and after each fork;
* a machine's first process serves one socket and ends when that socket does, and with it all of its machine.

The zygote's protocol is one packet on a SOCK_SEQPACKET socket that carries one descriptor: the machine's own stream
socket. What follows on that stream are frames (see frames.py), one reply to each request:
    {"do": "write", "files": [[path, size], ...]} + contents  -> {} | {"refused": why}
    {"do": "read", "path": path}                              -> {} + content | {"refused": why}
    {"do": "exec", "argv": [...], "timeout_s": s}             -> {"status", "code", "detail", "seconds", "left_out"}
                                                                 + output
Any request may be answered by {"broken": why}: the machine could not be made.
"""

import contextlib
import errno
import gc
import importlib
import os
import signal
import socket
import stat
import sys

from . import kernel, watch
from .frames import Broken, Header, pack, receive

MOUNT = "/run/etude"
WORKSPACE = "/home/agent"
# What small programs and their tests import: 14 ms for unittest alone, while the larger image costs a fork 0.2 ms.
WARM = (
    "unittest", "random", "json", "re", "math", "string", "itertools", "functools", "collections", "dataclasses",
    "typing", "heapq", "bisect", "copy", "contextlib", "enum", "traceback", "atexit",
)  # fmt: skip


def main(control_handle: int, uid: int, limits: dict[str, int]) -> None:
    """Fork a machine for every socket that arrives on `control_handle`, until it closes. Programs become `uid`."""
    for name in WARM:
        importlib.import_module(name)
    kernel.filter_program(os.uname().machine)  # both kept for the machines
    kernel.capabilities()
    kernel.unmount(f"{MOUNT}/inside")
    sys.path[:] = [folder for folder in sys.path if folder != MOUNT]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # keeps stdout and stderr in order
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a handler would let programs signal the first process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # machines that ended need no wait
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    control = socket.socket(fileno=control_handle)
    gc.freeze()  # a collection in a child would touch, and so copy, every object
    while True:
        packet, handles, _, _ = socket.recv_fds(control, 16, 1)
        if not packet:
            return
        stream = socket.socket(fileno=handles[0])
        try:
            kernel.unshare(kernel.NEW_PID)
            if os.fork() == 0:
                _machine(stream, uid, limits)
        except OSError as error:
            _answer_broken(stream, error)
        finally:
            kernel.enter_pid_namespace(own)
            stream.close()


def _machine(stream: socket.socket, uid: int, limits: dict[str, int]) -> None:
    """Life of the first process of a machine; never returns."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.close_range(3, stream.fileno() - 1)
        kernel.close_range(stream.fileno() + 1, kernel.LAST)
        _serve(stream, *_furnish(uid, limits), limits)
    except (Broken, ConnectionError, watch.Hangup):
        pass  # the fleet is gone or has closed this machine
    except Exception as error:  # the host has no memory or no process left, or forbids a call
        _answer_broken(stream, error)
    finally:
        os._exit(0)


def _furnish(uid: int, limits: dict[str, int]) -> tuple[int, int]:
    """Namespaces, file systems, a workspace, no privileges; returns descriptors of the workspace and of /proc."""
    processes = kernel.isolate(limits["workspace_mb"], uid)
    kernel.give_up_privileges(uid)
    os.umask(0o022)
    os.mkdir(WORKSPACE)
    os.mkdir("/home/tmp")
    return os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), processes


def _serve(stream: socket.socket, workspace: int, processes: int, limits: dict[str, int]) -> None:
    places = watch.Places(workspace, processes, stream.fileno())
    while (request := receive(stream.recv)) is not None:
        header, body = request
        if header["do"] == "exec":
            reply = watch.run(header["argv"], header["timeout_s"], places, limits)
        elif header["do"] == "write":
            reply = _write(header["files"], body, workspace), b""
        else:
            reply = _read(header["path"], workspace, limits["read_kb"] << 10)
        stream.sendall(pack(*reply))


def _write(files: list[tuple[str, int]], body: bytes, workspace: int) -> Header:
    start = 0
    for path, size in files:
        try:
            _write_one(path, body[start : start + size], workspace)
        except OSError as error:
            return {"refused": _why(path, error)}
        start += size
    return {}


def _write_one(path: str, data: bytes, workspace: int) -> None:
    parts = path.split("/")
    for depth in range(1, len(parts)):
        with contextlib.suppress(FileExistsError):
            _make_folder("/".join(parts[:depth]), workspace)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK  # a FIFO that nobody reads must not block
    handle = kernel.open_beneath(workspace, path, flags, 0o644)
    with open(handle, "wb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]


def _make_folder(path: str, workspace: int) -> None:
    above, _, name = path.rpartition("/")
    parent = kernel.open_beneath(workspace, above or ".", os.O_PATH | os.O_DIRECTORY)
    try:
        os.mkdir(name, dir_fd=parent)
    finally:
        os.close(parent)


def _read(path: str, workspace: int, most: int) -> tuple[Header, bytes]:
    try:
        handle = kernel.open_beneath(workspace, path, os.O_RDONLY | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return {"refused": f"{path}: not a regular file"}, b""
            if found.st_size > most:
                return {"refused": f"{path}: {found.st_size} bytes, more than the {most} that are read"}, b""
            return {}, file.read(most) or b""
    except OSError as error:
        return {"refused": _why(path, error)}, b""


def _why(path: str, error: OSError) -> str:
    words = {errno.ENOSPC: "the workspace is full", errno.EXDEV: "a link that leads out of the workspace"}
    return f"{path}: {words.get(error.errno or 0, os.strerror(error.errno or 0))}"


def _answer_broken(stream: socket.socket, error: Exception) -> None:
    with contextlib.suppress(OSError):
        stream.sendall(pack({"broken": f"{type(error).__name__}: {error}"}))
