"""Machines: how many at once, and what a program inside one may use up."""

from pydantic import Field

from etude.config.base import Config


class MachinesConfig(Config):
    """Limits of the process backend. A program that reaches one ends with `ExecStatus.LIMIT` or `TIMEOUT`."""

    zygotes: int = Field(default=1, ge=1, le=64)
    """Warm interpreters that machines are forked from; more than one helps only beyond about eight cores."""
    max_open: int = Field(default=256, ge=1, le=4096)
    """Machines open at once; `open` waits beyond that."""
    max_running: int | None = Field(default=None, ge=1)
    """Programs that run at once; others wait, and their time does not start. None: eight for each core."""
    memory_mb: int = Field(default=256, ge=32)
    """MiB of memory: of one process exactly, of all processes of a machine together checked ten times a second."""
    processes: int = Field(default=16, ge=1, le=1024)
    """Processes and threads of one machine at once."""
    workspace_mb: int = Field(default=16, ge=1)
    """MiB of files of one machine (workspace and /tmp together), and the largest size of one file."""
    output_kb: int = Field(default=64, ge=1, le=4096)
    """KiB of output that a result keeps: the first and the last half of it when there was more."""
    flood_mb: int = Field(default=4, ge=1)
    """MiB of output after which a program is stopped."""
    read_kb: int = Field(default=1024, ge=1, le=16384)
    """KiB: the largest file that `Machine.read` returns."""
    exec_timeout_s: float = Field(default=5.0, gt=0)
    """Wall seconds that a program may run, unless the call to `exec` says otherwise."""
    cpu_s: int = Field(default=5, ge=1)
    """CPU seconds of one process."""
    hash_seed: int = Field(default=0, ge=0, le=4294967295)
    """PYTHONHASHSEED inside: sets of strings iterate alike in every run. `random` is seeded afresh for every run."""
