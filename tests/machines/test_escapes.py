"""Nothing a machine runs reaches the host, the network, another machine or the grader (promise 8).

Each program below tries one way out and prints what it got; the host side shows where possible that the same thing
works from outside, so that a refusal is the machine's doing.
"""

import asyncio
import os
import secrets
import socket
import sys
from pathlib import Path

import pytest

from etude.machines import ExecStatus

from .conftest import Lab

TRY = """
import os, sys
def attempt(name, call):
    try:
        print(name, "DONE", call())
    except BaseException as error:
        print(name, type(error).__name__, getattr(error, "errno", ""))
"""
CALLS = (
    TRY
    + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def check(code):
    if code < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return code
"""
)


def outcomes(lab: Lab, source: str) -> dict[str, str]:
    """name -> what `attempt` printed for it."""
    result = lab.program(source)
    assert result.status is ExecStatus.OK, result.output
    return dict(line.split(" ", 1) for line in result.output.splitlines())


def refused(lab: Lab, source: str, count: int) -> dict[str, str]:
    """All `count` attempts of `source` failed with an exception."""
    found = outcomes(lab, source)
    assert len(found) == count, found
    assert not [name for name, what in found.items() if "DONE" in what], found
    return found


def test_host_files_are_not_there(lab: Lab) -> None:
    paths = [
        "/etc/shadow",
        "/etc/hostname",
        __file__,
        os.getcwd(),
        str(Path.home() / ".profile"),
        sys.prefix,
        "/sys",
        "/dev/vda",
    ]
    paths += [
        "/etc/ssl",
        "/var/log",
        "/proc/1/root/etc/shadow",
        "/proc/1/cwd",
        "/run/etude/inside/server.py",
        "/dev/kvm",
        "/dev/mem",
    ]
    assert Path(__file__).read_text()
    refused(lab, TRY + f"for path in {paths}: attempt(path, lambda: os.stat(path))\n", len(paths))


def test_installed_packages_and_the_grader_cannot_be_imported(lab: Lab) -> None:
    names = ["etude", "pytest", "msgspec", "pip", "inside", "inside.server"]
    refused(lab, TRY + f"for name in {names}: attempt(name, lambda: __import__(name))\n", len(names))


def test_nothing_but_home_can_be_written(lab: Lab) -> None:
    source = f"""
places = ["/", "/usr", "/usr/bin", "/etc", "/dev", "/var", "/proc", "/proc/sys/kernel", os.path.dirname(os.__file__),
          {sys.base_prefix!r}, os.path.dirname(os.path.realpath(sys.executable))]
for place in places: attempt(place, lambda: open(place + "/planted", "w"))
attempt("append", lambda: open(os.__file__, "a"))
attempt("chmod", lambda: os.chmod(os.__file__, 0o777))
attempt("remove", lambda: os.remove("/etc/passwd"))
attempt("rename", lambda: os.rename("/home", "/home2"))
attempt("sysctl", lambda: open("/proc/sys/kernel/hostname", "w").write("x"))
attempt("hostname", lambda: __import__("socket").sethostname("x"))
attempt("namespaces", lambda: open("/proc/sys/user/max_user_namespaces", "w").write("9"))
"""
    refused(lab, TRY + source, 18)
    assert "DONE" in outcomes(lab, TRY + "attempt('tmp', lambda: open('/tmp/x', 'w').write('x'))")["tmp"]


def test_programs_are_nobody_without_any_way_up(lab: Lab) -> None:
    status = lab.program("print(open('/proc/self/status').read())").output
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert fields["Uid"].split() == fields["Gid"].split() == ["1000"] * 4
    assert {int(fields[f"Cap{name}"], 16) for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("1", "2")
    source = "attempt('setuid', lambda: os.setuid(0))\nattempt('setgroups', lambda: os.setgroups([0]))\n"
    refused(lab, TRY + source, 2)
    assert (
        lab.command(("sh", "-c", "su -c id; sudo id; mount -t tmpfs x /tmp; unshare -Ur id")).status is ExecStatus.ERROR
    )


def test_system_calls_that_make_worlds_or_touch_others_are_refused(lab: Lab) -> None:
    source = """
attempt("mount", lambda: check(libc.mount(b"tmpfs", b"/home/tmp", b"tmpfs", 0, None)))
attempt("bind", lambda: check(libc.mount(b"/usr", b"/home/tmp", None, 4096, None)))
attempt("umount", lambda: check(libc.umount2(b"/proc", 2)))
attempt("userns", lambda: check(libc.unshare(0x10000000)))
attempt("netns", lambda: check(libc.unshare(0x40000000)))
attempt("setns", lambda: check(libc.setns(os.open("/proc/self/ns/net", 0), 0)))
attempt("clone", lambda: check(libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x10000011, 0, 0, 0, 0)))
attempt("clone3", lambda: check(libc.syscall(435, 0, 0)))
attempt("chroot", lambda: os.chroot("/home"))
attempt("ptrace", lambda: check(libc.ptrace(16, 1, 0, 0)))
attempt("keyctl", lambda: check(libc.syscall(250 if os.uname().machine == "x86_64" else 219, 0, -3, 1)))
attempt("memfd", lambda: os.memfd_create("x"))
attempt("shm", lambda: check(libc.shmget(1, 4096, 0o1600)))
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
attempt("prlimit", lambda: __import__("resource").prlimit(1, 7, (0, 0)))
attempt("affinity", lambda: os.sched_setaffinity(1, {0}))
"""
    found = refused(lab, CALLS + source, 16)
    assert {what.split()[-1] for name, what in found.items() if name != "clone3"} == {"1"}, found  # EPERM


def test_there_is_no_network_and_no_host_socket(lab: Lab) -> None:
    name = f"etude-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        port = server.getsockname()[1]
        unix.bind("\0" + name)
        unix.listen()
        with socket.socket(socket.AF_UNIX) as control:
            control.connect("\0" + name)
        socket.create_connection(("127.0.0.1", port)).close()
        source = f"""
import socket
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", {port}), 2))
attempt("outside", lambda: socket.create_connection(("1.1.1.1", 53), 2))
attempt("six", lambda: socket.create_connection(("::1", {port}), 2))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53)))
attempt("names", lambda: socket.getaddrinfo("example.com", 80))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r}))
attempt("hypervisor", lambda: socket.socket(40, socket.SOCK_STREAM))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("crypto", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
"""
        refused(lab, TRY + source, 11)
    assert (
        lab.program("print([l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l])").output == "['lo']\n"
    )


LISTEN = """
import os, socket, time
server = socket.socket(socket.AF_UNIX); server.bind("\\0meet"); server.listen()
open("/home/tmp/SECRET", "w").write("SECRET"); open("SECRET", "w").write("SECRET")
print("up", flush=True); open("up", "w").close(); time.sleep(1)
"""
LOOK = """
import glob, os, socket
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) not in (1, os.getpid()): print("process", pid)
for folder, _, names in os.walk("/home"):
    print(*[n for n in names if n == "SECRET"], end="")
try:
    socket.socket(socket.AF_UNIX).connect("\\0meet"); print("met")
except OSError as error:
    print(type(error).__name__)
for pid in range(2, 400):
    try:
        if pid != os.getpid(): os.kill(pid, 9); print("killed", pid)
    except ProcessLookupError: pass
"""


def test_machines_do_not_see_each_other(lab: Lab) -> None:
    async def work() -> tuple[str, str]:
        first, second = await lab.fleet.open({"p.py": LISTEN}), await lab.fleet.open({"p.py": LOOK})
        async with first, second:
            running = asyncio.create_task(first.exec(("python", "p.py"), 20.0))
            await asyncio.sleep(0.3)
            looked = await second.exec(("python", "p.py"), 20.0)
            assert not running.done()
            return (await running).output, looked.output

    assert lab.run(work()) == ("up\n", "ConnectionRefusedError\n")


def test_the_first_process_cannot_be_read_signalled_or_limited(lab: Lab) -> None:
    source = """
for name in ("mem", "environ", "cmdline", "oom_score_adj"):
    attempt(name, lambda: open("/proc/1/" + name).read())
for name in ("fd", "cwd", "root/etc"):
    attempt(name, lambda: os.listdir("/proc/1/" + name))
"""

    async def work() -> None:
        async with await lab.fleet.open({"p.py": TRY + source}) as machine:
            result = await machine.exec(("python", "p.py"))
            assert "DONE" not in result.output and result.output.count("\n") == 7, result.output
            kill = "import os\nfor n in range(1, 65):\n try: os.kill(1, n)\n except OSError: pass\nprint('still here')"
            for _ in range(2):
                assert (await machine.exec(("python", "-c", kill))).output == "still here\n"

    lab.run(work())


def test_a_grader_cannot_be_read_by_the_code_it_runs(lab: Lab) -> None:
    """The hidden tests fork before they read the expected values; the child holds the agent's code."""
    source = """
import time
r, w = os.pipe()
if os.fork():
    expected = "the expected value"; os.write(w, b"x"); os.wait()
else:
    os.read(r, 1); parent = f"/proc/{os.getppid()}/"
    attempt("mem", lambda: open(parent + "mem", "rb"))
    attempt("fd", lambda: os.listdir(parent + "fd"))
    attempt("environ", lambda: open(parent + "environ").read())
"""
    refused(lab, TRY + source, 3)


def test_a_program_starts_with_three_descriptors(lab: Lab) -> None:
    for argv in (("python", "p.py"), ("env", "python3", "p.py")):
        source = "import os\nprint(sorted(os.listdir('/proc/self/fd')))\n"
        source += "print([os.readlink(f'/proc/self/fd/{n}')[:5] for n in range(3)])"
        assert lab.command(argv, p__py=source).output == "['0', '1', '2', '3']\n['/dev/', 'pipe:', 'pipe:']\n"


def test_the_environment_is_only_what_the_machine_sets(lab: Lab) -> None:
    os.environ["SECRET_OF_THE_HOST"] = "x"
    names = set(lab.program("import os\nprint(*os.environ)").output.split())
    allowed = {
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "PYTHONHASHSEED",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
        "PWD",
        "LC_CTYPE",
    }
    assert names <= allowed


def test_no_device_but_the_harmless_ones(lab: Lab) -> None:
    result = lab.command(("sh", "-c", "for f in /dev/*; do [ -L $f ] || echo $f; done"))
    assert sorted(result.output.split()) == [f"/dev/{n}" for n in ("full", "null", "random", "urandom", "zero")]
    assert (
        "DONE" not in outcomes(lab, TRY + "attempt('mknod', lambda: os.mknod('d', 0o20666, os.makedev(1, 1)))")["mknod"]
    )


@pytest.mark.parametrize("argv", [("python", "p.py"), ("env", "python3", "p.py")], ids=["warm", "cold"])
def test_nothing_survives_its_exec(lab: Lab, argv: tuple[str, ...]) -> None:
    survivor = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in range(1, 65):
            try: signal.signal(n, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True:
            open("beat", "a").write("x"); time.sleep(0.01)
    os._exit(0)
while not os.path.exists("beat"): time.sleep(0.01)
print("left")
"""

    async def work() -> None:
        async with await lab.fleet.open({"p.py": survivor}) as machine:
            assert (await machine.exec(argv)).output == "left\n"
            beats = await machine.read("beat")
            alive = await machine.exec(("sh", "-c", "ls /proc | grep -c '^[0-9]'; sleep 0.1"))
            assert await machine.read("beat") == beats and int(alive.output) <= 4

    lab.run(work())
