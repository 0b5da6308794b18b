"""The child's side of an exec: from a fork of the machine's first process to a running program.

Invariant: `become` never returns, and when the program starts it holds descriptors 0 to 2 only, its own session, the
limits of the config and, if it is Python, an interpreter in which no program has run before.
"""

import errno
import os
import resource
import signal
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import kernel

LIMIT_SIGNAL = signal.SIGRTMAX - 1
"""A Python program whose uncaught exception says "out of memory, processes or disk" ends by this signal."""
MIB = 1 << 20
# A process that has it all may still be asked for 64 descriptors of 212 KiB socket buffer, which no other limit counts.
OPEN_FILES = 128
_OURS = ("inside", "inside.frames", "inside.kernel", "inside.program", "inside.server", "inside.watch")
_EXHAUSTED = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN)


def become(argv: Sequence[str], output: int, workspace: int, limits: dict[str, int]) -> NoReturn:
    """Turn this process into the program `argv`, writing to `output`, in the folder open as `workspace`.

    `python FILE`, `python -c CODE` and `python -m MODULE` run right here, in the warm interpreter; all else is exec'ed.
    """
    code = 126
    try:
        _settle(output, workspace, limits)
        first = argv[1] if argv[0] in ("python", "python3") and len(argv) > 1 else "-"
        if first in ("-c", "-m"):
            code = _run(_inline, argv)
        elif not first.startswith("-"):
            code = _run(_file, argv)
        else:
            code = _execute(argv)
    except OSError as error:
        _say(f"{argv[0]}: {error.strerror}\n")
    except BaseException as error:  # a fork must never run on into its parent's code
        _say(f"{argv[0]}: {error!r}\n")
    finally:
        os._exit(code)


def _settle(output: int, workspace: int, limits: dict[str, int]) -> None:
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.fchdir(workspace)
    kernel.close_range(3, kernel.LAST)
    kernel.set_dumpable(True)
    kernel.write("/proc/self/oom_score_adj", b"1000")  # when the host runs out of memory, programs go first
    kernel.set_dumpable(False)  # no other program of the machine can read a grader's memory through /proc
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1),
        (resource.RLIMIT_DATA, limits["memory_mb"] * MIB, limits["memory_mb"] * MIB),
        # One for the machine's first process, one so that a count above the limit can be seen at all.
        (resource.RLIMIT_NPROC, limits["processes"] + 2, limits["processes"] + 2),
        (resource.RLIMIT_FSIZE, limits["workspace_mb"] * MIB, limits["workspace_mb"] * MIB),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 1, 1),  # too small for a file, and, unlike 0, no core is piped to a helper of the host
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))


def _execute(argv: Sequence[str]) -> int:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # ignored here; would stay so over exec
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], list(argv))
    except FileNotFoundError:
        _say(f"{argv[0]}: command not found\n")
    return 127


def _run(load: Callable[[Sequence[str]], Any], argv: Sequence[str]) -> int:
    """Run a Python program as the interpreter's `main` would, without its start and its end of 10 ms each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in _OURS:
        del sys.modules[name]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    code = 0
    sys.setrecursionlimit(sys.getrecursionlimit() + _depth())  # as deep as in an interpreter of its own
    try:
        load(argv)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:
        _report(error)
        if _is_exhausted(error):  # its other threads would only wait for what they cannot have
            os.kill(os.getpid(), LIMIT_SIGNAL)
        code = 1
    return _finish(code)


def _depth() -> int:
    frame: types.FrameType | None = sys._getframe()
    depth = 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def _file(argv: Sequence[str]) -> None:
    sys.argv = list(argv[1:])
    path = os.path.join(os.getcwd(), argv[1])
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        _say(f"python: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(2) from None
    main = sys.modules["__main__"].__dict__
    main.update(__file__=path, __cached__=None)
    exec(compile(source, path, "exec", dont_inherit=True), main)


def _inline(argv: Sequence[str]) -> None:
    if len(argv) < 3:
        _say(f"Argument expected for the {argv[1]} option\n")
        raise SystemExit(2)
    sys.argv = [argv[1], *argv[3:]]
    if argv[1] == "-c":
        sys.path.insert(0, "")
        exec(compile(argv[2], "<string>", "exec", dont_inherit=True), sys.modules["__main__"].__dict__)
    else:
        import runpy

        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]  # what the interpreter itself calls


def _report(error: BaseException) -> None:
    """Print an uncaught exception without the frames of this file, so that it reads as from a fresh interpreter."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        sys.stdout.flush()
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except BaseException:
        _say(f"{type(error).__name__}\n")


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    _say(f"{error.code}\n")
    return 1


def _finish(code: int) -> int:
    """What the interpreter does at its end: wait for threads, run the exit handlers, flush."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()  # type: ignore[attr-defined]
        sys.modules["atexit"]._run_exitfuncs()  # type: ignore[attr-defined]
    except BaseException as error:
        _report(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return code or 120
    return code


def _is_exhausted(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except BaseException:
        return
