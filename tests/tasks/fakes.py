"""A fleet of folders: enough of a machine to run the programs of a kata, and to fail on request."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from etude.machines import ExecResult, ExecStatus


class FolderMachine:
    """One temporary folder. `closed` stays for the tests to look at."""

    def __init__(self, files: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.root = Path(self._folder.name)
        self.closed = False
        self.seen_at_exec: set[str] = set()
        for path, text in files.items():
            (self.root / path).write_text(text)

    async def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text)

    async def read(self, path: str) -> str:
        return (self.root / path).read_text()

    async def exec(self, argv: tuple[str, ...], timeout_s: float) -> ExecResult:
        self.seen_at_exec = {path.name for path in self.root.iterdir()}
        return await asyncio.to_thread(run, self.root, argv, timeout_s)

    async def close(self) -> None:
        self.closed = True
        self._folder.cleanup()


class FolderFleet:
    """Opens folder machines, or raises `trouble`; remembers what it opened."""

    def __init__(self, machine: type[FolderMachine] = FolderMachine, trouble: Exception | None = None) -> None:
        self._machine, self._trouble = machine, trouble
        self.opened: list[FolderMachine] = []

    async def open(self, files: dict[str, str]) -> FolderMachine:
        if self._trouble:
            raise self._trouble
        self.opened.append(self._machine(files))
        return self.opened[-1]

    async def close(self) -> None:
        for machine in self.opened:
            assert machine.closed


def run(root: Path, argv: tuple[str, ...], timeout_s: float) -> ExecResult:
    """Run `argv` in a folder; on a timeout it ends with every process it started."""
    command = [sys.executable, *argv[1:]] if argv[0] == "python" else list(argv)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return ExecResult(ExecStatus.TIMEOUT, None, "")
    status = ExecStatus.OK if process.returncode == 0 else ExecStatus.ERROR
    return ExecResult(status, process.returncode, out + err)
