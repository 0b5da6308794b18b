"""System calls that Python 3.11 does not offer: namespaces, mounts, capabilities, the syscall filter, beneath-opens.

Invariant: after `isolate` and `give_up_privileges` this process and all its children see only their own machine, hold
no capability, can gain none, and cannot make a namespace or a mount. Each function raises OSError on failure.
"""

import ctypes
import functools
import os
import struct
from enum import IntEnum

libc = ctypes.CDLL(None, use_errno=True)

NEW_MOUNT, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
NEW_ANY = NEW_MOUNT | NEW_CGROUP | NEW_UTS | NEW_IPC | NEW_USER | NEW_PID | NEW_NET
MS_NOSUID, MS_NODEV, MS_NOEXEC, MNT_DETACH = 2, 4, 8, 2
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 8, 22, 24, 38
SECCOMP_MODE_FILTER = 2
CLOSE_RANGE, OPENAT2, RESOLVE_NO_MAGICLINKS, RESOLVE_BENEATH = 436, 437, 0x02, 0x08
LAST = 0x7FFFFFFF

INSIDE_UID = 1000
"""User and group id that programs see; the only one that exists in a machine."""


class Errno(IntEnum):
    """Answers of the syscall filter."""

    EPERM = 1
    ENOSYS = 38
    EAFNOSUPPORT = 97


# name: (x86-64, arm64). Refused outright: ways to reach another process, to make kernel objects that outlive an exec
# or that no limit counts, and interfaces that serve no program here and have a long record of holes.
DENIED = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
# The machine's first process has the same user id as the programs: they must not starve it. Own process only (pid 0).
OWN_PROCESS_ONLY = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274),
}  # fmt: skip
CLONE, CLONE3, SOCKET = (56, 220), (435, 435), (41, 198)
# AF_VSOCK would reach a hypervisor from any network namespace; netlink, AF_ALG and AF_PACKET are attack surface.
FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` for new ones."""
    _check(libc.unshare(ctypes.c_int(flags)), "unshare")


def enter_pid_namespace(handle: int) -> None:
    """Put later children back into the pid namespace open as `handle`."""
    _check(libc.setns(ctypes.c_int(handle), ctypes.c_int(NEW_PID)), "setns")


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    """Mount a new file system of `kind`."""
    code = libc.mount(kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(code, f"mount {kind} on {target}")


def unmount(target: str) -> None:
    """Take the mount at `target` away, even if it is in use."""
    _check(libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def write(path: str, data: bytes) -> None:
    """One write to a file of /proc. (A text file object would touch, and so copy, 60 more pages of a fork.)"""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)


def set_dumpable(on: bool) -> None:
    """Off: no other process may read this one's memory or descriptors, and its /proc entries belong to root."""
    _prctl(PR_SET_DUMPABLE, int(on))


def isolate(workspace_mb: int, uid: int) -> int:
    """Give this process, the first of a new pid namespace, its own mounts, IPC, host name and network.

    /home becomes the machine's only writable place, owned by `uid`. /proc shows this pid namespace, and to programs
    only what they may inspect: this process is not in it. Returns a descriptor of a /proc that shows all. The network
    namespace is one per machine, not one per zygote: abstract Unix sockets live in it, and it costs 0.35 ms.
    """
    unshare(NEW_MOUNT | NEW_IPC | NEW_UTS | NEW_NET)
    # Every file costs kernel memory that `size` does not count: 512 of them a MiB.
    options = f"size={workspace_mb}m,nr_inodes={workspace_mb * 512 + 64},mode=0755,uid={uid},gid={uid}"
    mount("tmpfs", "/home", MS_NOSUID | MS_NODEV, options)
    mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2")
    name = b"machine"
    _check(libc.sethostname(name, len(name)), "sethostname")
    return processes


def give_up_privileges(uid: int) -> None:
    """Become `uid`, seen as INSIDE_UID in a user namespace of this machine, without capabilities, for good.

    The user namespace is what makes RLIMIT_NPROC count this machine alone (Linux 5.14 and later). It owns neither
    the mounts nor the network, which were made before it: not even its root could change them.
    """
    if uid != os.geteuid():
        _prctl(PR_SET_KEEPCAPS, 1)  # a host may let only CAP_SYS_ADMIN make user namespaces
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        _set_capabilities(_permitted())
    unshare(NEW_USER)
    set_dumpable(True)  # or the maps would belong to root
    write("/proc/self/setgroups", b"deny")
    write("/proc/self/uid_map", b"%d %d 1" % (INSIDE_UID, uid))
    write("/proc/self/gid_map", b"%d %d 1" % (INSIDE_UID, uid))
    set_dumpable(False)
    write("/proc/sys/user/max_user_namespaces", b"0")
    for capability in range(capabilities()):
        _prctl(PR_CAPBSET_DROP, capability)
    _set_capabilities(0)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _install_filter()


def close_range(first: int, last: int) -> None:
    """Close every descriptor from `first` to `last`, both included; nothing when `last` is below `first`."""
    if last >= first:
        _check(libc.syscall(*map(ctypes.c_long, (CLOSE_RANGE, first, last, 0))), "close_range")


def open_beneath(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """openat2: open `path` below the descriptor `folder`; a link or `..` that leads out of it fails with EXDEV."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    name = os.fsencode(path)
    handle = libc.syscall(
        ctypes.c_long(OPENAT2), ctypes.c_int(folder), name, ctypes.c_char_p(how), ctypes.c_size_t(len(how))
    )
    _check(handle, path)
    return handle


@functools.cache
def capabilities() -> int:
    """How many capabilities this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="utf-8") as file:
        return int(file.read()) + 1


@functools.cache
def filter_program(machine: str) -> bytes:
    """The syscall filter as classic BPF for `machine` ("x86_64" or "aarch64"); other machines raise OSError.

    Each rule is a comparison that skips one return, so no jump is computed. Loads: 4 is the architecture, 0 the
    syscall's number, 16 the low half of its first argument.
    """
    if machine not in ARCHITECTURES:
        raise OSError(f"no syscall filter for {machine}; machines run on x86_64 and aarch64")
    column, audit = ARCHITECTURES[machine]
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000
    code: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4), (equal, 1, 0, audit), (answer, 0, 0, refuse | Errno.ENOSYS),
        (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (answer, 0, 0, refuse | Errno.ENOSYS),  # the x32 ABI
        # ENOSYS makes glibc fall back to clone, whose flags a filter can see.
        (equal, 0, 1, CLONE3[column]), (answer, 0, 0, refuse | Errno.ENOSYS),
    ]  # fmt: skip
    for numbers in DENIED.values():
        code += [(equal, 0, 1, numbers[column]), (answer, 0, 0, refuse | Errno.EPERM)]
    for numbers in OWN_PROCESS_ONLY.values():
        code += [(equal, 0, 4, numbers[column]), (load, 0, 0, 16), (equal, 1, 0, 0)]
        code += [(answer, 0, 0, refuse | Errno.EPERM), (answer, 0, 0, allow)]
    code += [(equal, 0, 4, CLONE[column]), (load, 0, 0, 16), (any_bit, 0, 1, NEW_ANY)]
    code += [(answer, 0, 0, refuse | Errno.EPERM), (answer, 0, 0, allow)]
    code += [(equal, 0, len(FAMILIES) + 2, SOCKET[column]), (load, 0, 0, 16)]
    code += [(equal, len(FAMILIES) - place, 0, family) for place, family in enumerate(FAMILIES)]
    code += [(answer, 0, 0, refuse | Errno.EAFNOSUPPORT), (answer, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *step) for step in code)


def _install_filter() -> None:
    program = ctypes.create_string_buffer(filter_program(os.uname().machine))
    header = struct.pack("HxxxxxxQ", len(program.raw) // 8, ctypes.addressof(program))
    _check(
        libc.prctl(ctypes.c_int(PR_SET_SECCOMP), ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.c_char_p(header)),
        "seccomp",
    )


def _permitted() -> int:
    """The permitted capabilities of this process, one bit each."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapPrm"))


def _set_capabilities(bits: int) -> None:
    """Permitted and effective become `bits`, inheritable and so ambient become empty (capset, version 3)."""
    low, high = bits & 0xFFFFFFFF, bits >> 32
    header = struct.pack("Ii", 0x20080522, 0)
    _check(libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)), "capset")


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def _check(code: int, what: str) -> None:
    if code < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
