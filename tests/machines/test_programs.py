"""What a program sees and what its result says."""

import asyncio
import time

import pytest

from etude.machines import ExecStatus, WorkspaceError
from etude.records import UserError

from .conftest import LIMITS, Lab

PROGRAMS = {
    "prints": "import sys\nprint(sys.argv, __name__, __file__)\nprint('err', file=sys.stderr)\nprint(sys.path[0])\n",
    "raises": "def f(n):\n    1 / n\ntry:\n    f(0)\nexcept ArithmeticError as e:\n    raise KeyError('x') from e\n",
    "syntax": "x = (\n",
    "null": "x = 1\x00\n",
    "exits 3": "import sys\nprint(3)\nsys.exit(3)\n",
    "exits with words": "import sys\nsys.exit('bye')\n",
    "exit handlers": "import atexit\natexit.register(print, 'last')\nprint('first')\n",
    "threads outlive main": "import threading\nthreading.Timer(0.05, lambda: print('t')).start()\n",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0\n",
    "recursion": "def f(n):\n    return n and f(n - 1)\nprint(f(990))\ntry:\n    f(1000)\nexcept RecursionError as e:\n"
    "    print(e)\n",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(1, 2)\n"
    "try:\n    unittest.main()\nexcept SystemExit as e:\n    print(e.code)\n",
    "pickles": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)\n",
    "imports a neighbour": "import other\nprint(other.VALUE)\n",
    "multiprocessing": "import multiprocessing as m\nif __name__ == '__main__':\n    with m.Pool(2) as p:\n"
    "        print(p.map(abs, [-1, -2]))\n",
    "own signal": "import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGUSR1)\n",
    "hash": "print(hash('word'), {'a', 'b', 'c', 'd'})\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_warm_program_behaves_as_in_a_fresh_interpreter(lab: Lab, name: str) -> None:
    files = {"p__py": PROGRAMS[name], "other__py": "VALUE = 7\n"}
    warm = lab.command(("python", "p.py", "a", "b"), **files)
    cold = lab.command(("env", "python3", "p.py", "a", "b"), **files)
    assert (warm.status, warm.code) == (cold.status, cold.code)
    if name not in ("unittest", "null"):  # one prints the time it took, the other is a compile error of its own wording
        assert warm.output == cold.output
    assert warm.output


@pytest.mark.parametrize(
    ("argv", "status", "code", "output"),
    [
        (("python", "-c", "import sys; print(sys.argv, 6 * 7)", "z"), "ok", 0, "['-c', 'z'] 42\n"),
        (("python", "-m", "other"), "ok", 0, "__main__\n"),
        (("sh", "-c", "echo $0 $HOME; pwd; exit 4"), "error", 4, "sh /home/agent\n/home/agent\n"),
        (("sh", "-c", "kill -TERM $$"), "error", -15, ""),
        (("no-such-program",), "error", 127, "no-such-program: command not found\n"),
        (("/etc",), "error", 126, "/etc: Permission denied\n"),
        (("python", "-m"), "error", 2, "Argument expected for the -m option\n"),
    ],
)  # fmt: skip
def test_any_command_runs_in_the_workspace(
    lab: Lab, argv: tuple[str, ...], status: str, code: int, output: str
) -> None:
    result = lab.command(argv, other__py="print(__name__)\n")
    assert (result.status, result.code, result.output) == (ExecStatus(status), code, output)
    assert result.detail == "" and not result.truncated and 0 < result.seconds < 20


def test_no_run_sees_what_an_earlier_one_did_except_its_files(lab: Lab) -> None:
    first = """
import builtins, json, os, random, string, sys
builtins.print = None; json.loads = None; string.digits = "x"; sys.modules["re"] = None
random.seed(1); os.environ["LEFT"] = "1"; os.chdir("/"); sys.setrecursionlimit(77)
open("/home/agent/left", "w").write("file")
"""
    second = """
import json, os, random, string, re, sys
print(json.loads("1"), string.digits, "LEFT" in os.environ, os.getcwd(), sys.getrecursionlimit() > 900)
print(open("left").read())
"""

    async def work() -> tuple[str, str]:
        async with await lab.fleet.open({"1.py": first, "2.py": second}) as machine:
            assert (await machine.exec(("python", "1.py"))).status is ExecStatus.OK
            result = await machine.exec(("python", "2.py"))
            return result.output, ""

    assert lab.run(work())[0] == "1 0123456789 False /home/agent True\nfile\n"


def test_random_differs_between_runs_and_the_order_of_sets_does_not(lab: Lab) -> None:
    async def work() -> list[list[str]]:
        async with await lab.fleet.open({"p.py": "import random\nprint(random.random(), hash('x'))\n"}) as machine:
            return [(await machine.exec(("python", "p.py"))).output.split() for _ in range(4)]

    runs = lab.run(work())
    assert len({numbers for numbers, _ in runs}) == 4
    assert len({hashed for _, hashed in runs}) == 1


def test_files_written_later_are_not_there_earlier(lab: Lab) -> None:
    async def work() -> tuple[str, str]:
        async with await lab.fleet.open({"a.txt": "", "deep/er/b.txt": ""}) as machine:
            before = await machine.exec(("find", ".", "-type", "f"))
            await machine.write("tests/hidden.py", "print(1)\n")
            return before.output, (await machine.exec(("find", ".", "-type", "f"))).output

    before, after = lab.run(work())
    assert sorted(before.split()) == ["./a.txt", "./deep/er/b.txt"]
    assert sorted(after.split()) == ["./a.txt", "./deep/er/b.txt", "./tests/hidden.py"]


def test_text_comes_back_as_written(lab: Lab) -> None:
    async def work() -> None:
        async with await lab.fleet.open({"é/ü.txt": "snow ☃\r\n\0", "empty": ""}) as machine:
            assert await machine.read("é/ü.txt") == "snow ☃\r\n\0"
            assert await machine.read("empty") == ""
            await machine.write("é/ü.txt", "short")
            assert await machine.read("é/ü.txt") == "short"
            await machine.exec(("sh", "-c", r"printf '\377a' > raw; printf '\377b'"))
            assert await machine.read("raw") == "\ufffda"

    lab.run(work())


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../b", "", "a//b", "a/", "./a", "a\0b", "x" * 300, "a\ud800"]
)
def test_a_path_that_is_not_inside_the_workspace_is_a_user_error(lab: Lab, path: str) -> None:
    async def work() -> None:
        with pytest.raises(WorkspaceError, match="machine file"):
            await lab.fleet.open({path: ""})
        async with await lab.fleet.open({}) as machine:
            with pytest.raises(WorkspaceError, match="machine file"):
                await machine.read(path)
            with pytest.raises(WorkspaceError, match="machine file"):
                await machine.write(path, "")
            assert (await machine.exec(("true",))).status is ExecStatus.OK

    lab.run(work())


@pytest.mark.parametrize("argv", [(), "python p.py", ("",), ("a\0",), ("echo", "x" * 200_000), ("a\ud800",)])
def test_an_argv_that_cannot_be_one_is_a_user_error(lab: Lab, argv: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="machine command"):
        lab.command(argv)


def test_reading_refuses_links_out_large_files_and_what_is_no_file(lab: Lab) -> None:
    prepare = """
import os
os.symlink("/etc/passwd", "out"); os.symlink("/etc", "folder"); os.symlink("/proc/self/environ", "magic")
os.symlink("../../etc/passwd", "dots"); os.mkfifo("fifo"); os.mkdir("dir"); os.symlink("real", "in")
os.symlink("loop", "loop")
open("real", "w").write("text"); open("large", "w").truncate(1 << 20); open("secret", "w").close()
os.chmod("secret", 0)
"""

    async def work() -> None:
        async with await lab.fleet.open({"p.py": prepare}) as machine:
            assert (await machine.exec(("python", "p.py"))).status is ExecStatus.OK
            assert await machine.read("in") == "text"
            for path in (
                "out",
                "folder/passwd",
                "magic",
                "dots",
                "fifo",
                "dir",
                "loop",
                "large",
                "gone",
                "secret",
                "real/x",
            ):
                with pytest.raises(WorkspaceError, match=f"machine file {path}: "):
                    await machine.read(path)
            for path in ("out", "folder/passwd", "folder/new/file", "dots", "fifo", "dir", "loop"):
                with pytest.raises(WorkspaceError, match=f"machine file {path}: "):
                    await machine.write(path, "x")
            await machine.write("in", "other")
            assert await machine.read("real") == "other"

    lab.run(work())


def test_what_the_program_did_to_its_workspace_is_never_the_infrastructures_fault(lab: Lab) -> None:
    async def work() -> None:
        for ruin in (
            "rm -rf /home/agent",
            "chmod 000 /home/agent",
            "mv /home/agent /home/x",
            "rm -rf /home/tmp; kill -9 1 -1",
        ):
            async with await lab.fleet.open({"a": "1"}) as machine:
                await machine.exec(("sh", "-c", ruin))
                for _ in range(2):
                    result = await machine.exec(("python", "-c", "import os; print(len(os.listdir('.')))"))
                    assert result.status in (ExecStatus.OK, ExecStatus.ERROR)
                try:
                    await machine.write("b", "2")
                    assert await machine.read("b") == "2"
                except WorkspaceError:
                    pass

    lab.run(work())


def test_files_too_large_for_the_workspace_are_refused(lab: Lab) -> None:
    async def work() -> None:
        with pytest.raises(UserError, match=r"5242880 bytes.*workspace_mb = 4"):
            await lab.fleet.open({"a": "x" * (5 << 20)})
        async with await lab.fleet.open({"a": "x" * (3 << 20)}) as machine:
            with pytest.raises(WorkspaceError, match="machine file b: the workspace is full"):
                await machine.write("b", "x" * (2 << 20))

    lab.run(work())


def test_machines_work_side_by_side(lab: Lab) -> None:
    async def one(number: int) -> str:
        async with await lab.fleet.open({"n": str(number), "p.py": "print(int(open('n').read()) ** 2)\n"}) as machine:
            return (await machine.exec(("python", "p.py"), 30.0)).output

    async def work() -> list[str]:
        return await asyncio.gather(*(one(n) for n in range(48)))

    started = time.monotonic()
    assert lab.run(work()) == [f"{n * n}\n" for n in range(48)]
    assert time.monotonic() - started < 30
    assert LIMITS.max_open == 256
