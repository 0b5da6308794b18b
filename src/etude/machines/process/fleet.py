"""Machines on this computer: warm interpreters in bubblewrap, and machines forked from them.

Invariants: at most `max_open` machines are open; a zygote that died is replaced before the next machine is made; when
the fleet is closed, or its process is gone by whatever means, no process of it is left.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Self

from etude.config.machines import MachinesConfig
from etude.machines.process import root
from etude.machines.process.machine import ProcessMachine
from etude.records import InfraError, UserError

END_S = 10.0
"""Seconds that a zygote has to end by itself."""


class Zygote:
    """One warm interpreter in bubblewrap. The kernel kills it with the thread that made it, the one of the loop."""

    def __init__(self, config: MachinesConfig) -> None:
        control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        self._control = control
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process that writes it
        with other, contextlib.ExitStack() as stack:
            handles = [other.fileno(), *(stack.enter_context(_memory(t)) for t in (root.ACCOUNTS, root.GROUPS))]
            try:
                self._process = subprocess.Popen(
                    root.zygote_command(config, *handles),
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors, pass_fds=handles, cwd="/",
                    start_new_session=True,  # an interrupt at the terminal is for the run to handle
                )  # fmt: skip
            except OSError as error:
                control.close()
                raise UserError(f"machines: bubblewrap does not start here ({error}); see docs/machines.md") from None

    @property
    def pid(self) -> int:
        """Process id of bubblewrap."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def connect(self) -> socket.socket:
        """Ask for a machine and return our end of its stream. Raises InfraError when the zygote is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            while True:
                try:
                    socket.send_fds(self._control, [b"machine"], [theirs.fileno()])
                    return ours
                except BlockingIOError:
                    await asyncio.sleep(0.002)  # the zygote forks at about 700 a second and the queue is full
                except OSError as error:
                    ours.close()
                    raise InfraError(f"machines: the zygote is gone ({error}) {self.last_words()}") from None

    def last_words(self) -> str:
        """What bubblewrap or the zygote printed before it died, on one line."""
        self._errors.seek(0)
        lines = self._errors.read(1 << 16).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def close(self) -> None:
        """End it and all its machines, and wait for that."""
        self._control.close()
        for _ in range(int(END_S / 0.005)):
            if not self.alive:
                break
            await asyncio.sleep(0.005)
        self._process.kill()  # --die-with-parent takes everything inside along
        self._process.wait()
        self._errors.close()


class ProcessFleet:
    """Opens machines as processes of this computer. Use it from one asyncio loop: `start`, `open` ..., `close`."""

    def __init__(self, config: MachinesConfig) -> None:
        self.config = config
        self._slots = asyncio.Semaphore(config.max_open)
        # 256 endless loops at once on 2 cores were stopped 19 s late, and programs beside them for no fault of theirs.
        self._running = asyncio.Semaphore(config.max_running or 8 * len(os.sched_getaffinity(0)))
        self._zygotes: list[Zygote] = []
        self._turn = itertools.count()
        self._machines: set[ProcessMachine] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the zygotes and prove with a real program that machines work.

        Raises UserError, with what to do, where this computer does not allow namespaces.
        """
        if self._zygotes:
            return
        self._zygotes = [Zygote(self.config) for _ in range(self.config.zygotes)]
        for zygote in self._zygotes:
            try:
                async with await self._open_from(zygote, {}) as machine:
                    result = await machine.exec(["python", "-c", "print('ready')"], timeout_s=20.0)
                trouble = (
                    "" if result.output == "ready\n" else f"a first program ended with {result} {zygote.last_words()}"
                )
            except InfraError as error:
                trouble = zygote.last_words() or str(error)
            if trouble:
                await self.close()
                raise UserError(_advice(trouble))

    async def open(self, files: Mapping[str, str]) -> ProcessMachine:
        """A fresh machine holding `files`; see `etude.machines.Fleet.open`."""
        if self._closed or not self._zygotes:
            raise InfraError("machines: the fleet is not running; await start() first")
        place = next(self._turn) % len(self._zygotes)
        if not self._zygotes[place].alive:
            dead, self._zygotes[place] = self._zygotes[place], Zygote(self.config)
            await dead.close()
        return await self._open_from(self._zygotes[place], files)

    async def close(self) -> None:
        """Close all machines and end the zygotes. Never raises; may be called twice."""
        self._closed = True
        await asyncio.gather(*(machine.close() for machine in list(self._machines)))
        await asyncio.gather(*(zygote.close() for zygote in self._zygotes))
        self._zygotes = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _open_from(self, zygote: Zygote, files: Mapping[str, str]) -> ProcessMachine:
        await self._slots.acquire()
        try:
            stream = await zygote.connect()
        except BaseException:
            self._slots.release()
            raise
        machine = ProcessMachine(stream, self.config, self._running, self._forget)
        self._machines.add(machine)
        try:
            await machine.furnish(files)
        except BaseException:
            await machine.close()
            raise
        return machine

    def _forget(self, machine: ProcessMachine) -> None:
        self._machines.discard(machine)
        self._slots.release()


@contextlib.contextmanager
def _memory(text: str) -> Iterator[int]:
    """A descriptor from which bubblewrap reads `text`."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield file.fileno()


def _advice(trouble: str) -> str:
    return (
        f"machines: this computer does not let processes be isolated ({trouble}); allow user namespaces (sysctl "
        "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a container "
        "--security-opt seccomp=unconfined) or run as root"
    )
