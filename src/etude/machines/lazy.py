"""A machine that is made when something has to run in it.

Invariant: to its user it is the machine that `fleet.open(files)` would have given at once. Before the first program
runs, a machine holds nothing but its files, so they can as well be held here: an agent that only reads and edits costs
no machine at all.
"""

from collections.abc import Mapping, Sequence
from typing import Self

from etude.machines.base import ExecResult, Fleet, Machine, WorkspaceError, check_path


class LazyMachine:
    """See the module docstring. Calls are carried out one after the other, as on any machine."""

    def __init__(self, fleet: Fleet, files: Mapping[str, str]) -> None:
        self._fleet = fleet
        self._files = {check_path(path): text for path, text in files.items()}
        self._machine: Machine | None = None

    async def write(self, path: str, text: str) -> None:
        """See `Machine.write`."""
        if self._machine is not None:
            await self._machine.write(path, text)
        else:
            self._files[check_path(path)] = text

    async def read(self, path: str) -> str:
        """See `Machine.read`."""
        if self._machine is not None:
            return await self._machine.read(path)
        if check_path(path) not in self._files:
            raise WorkspaceError(f"{path}: no such file in the workspace")
        return self._files[path]

    async def exec(self, argv: Sequence[str], timeout_s: float | None = None) -> ExecResult:
        """See `Machine.exec`; the first call makes the machine. Raises UserError when it cannot hold the files."""
        if self._machine is None:
            self._machine = await self._fleet.open(self._files)
        return await self._machine.exec(argv, timeout_s)

    async def close(self) -> None:
        """See `Machine.close`."""
        if self._machine is not None:
            await self._machine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
