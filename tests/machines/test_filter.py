"""The syscall filter, run by a tiny interpreter of its own over every call number."""

import re
import struct
from pathlib import Path

import pytest

from etude.machines.process.inside import kernel

ALLOW, REFUSE = 0x7FFF0000, 0x00050000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def answer(machine: str, number: int, first: int = 0, audit: int | None = None) -> int:
    """What the filter says to syscall `number` with first argument `first`."""
    data = struct.pack("<IIQ6Q", number, AUDIT[machine] if audit is None else audit, 0, first, 0, 0, 0, 0, 0)
    program = list(struct.iter_unpack("HBBI", kernel.filter_program(machine)))
    at, value = 0, 0
    while True:
        code, yes, no, constant = program[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, constant)
        elif code == 0x06:
            return constant
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[code]
            at += yes if holds else no


@pytest.mark.parametrize("column, machine", enumerate(AUDIT))
def test_exactly_the_listed_calls_are_refused(column: int, machine: str) -> None:
    denied = {numbers[column] for numbers in kernel.DENIED.values()}
    depends = {numbers[column] for numbers in (*kernel.OWN_PROCESS_ONLY.values(), kernel.CLONE, kernel.SOCKET)}
    for number in set(range(600)) - depends - {435}:
        assert answer(machine, number) == (REFUSE | 1 if number in denied else ALLOW), number
    assert answer(machine, 435) == REFUSE | 38
    for numbers in kernel.OWN_PROCESS_ONLY.values():
        assert [answer(machine, numbers[column], pid) for pid in (0, 1, 77)] == [ALLOW, REFUSE | 1, REFUSE | 1]
    plain, thread = 17, 0x3D0F00
    assert [answer(machine, kernel.CLONE[column], flags) for flags in (plain, thread)] == [ALLOW] * 2
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, kernel.CLONE[column], plain | bit) == REFUSE | 1
    families = {family for family in range(64) if answer(machine, kernel.SOCKET[column], family) == ALLOW}
    assert families == {1, 2, 10}
    assert answer(machine, kernel.SOCKET[column], 40) == REFUSE | 97


def test_foreign_calling_conventions_are_refused() -> None:
    assert answer("x86_64", 39, audit=0x40000003) == REFUSE | 38  # a 32-bit program
    assert answer("x86_64", 39 | 0x40000000) == REFUSE | 38  # x32
    with pytest.raises(OSError, match="riscv64"):
        kernel.filter_program("riscv64")


@pytest.mark.parametrize("column, machine", enumerate(AUDIT))
def test_call_numbers_are_those_of_the_kernels_headers(column: int, machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"{HEADERS[machine]} is not installed")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text()))
    listed = {
        **kernel.DENIED,
        **kernel.OWN_PROCESS_ONLY,
        "clone": kernel.CLONE,
        "clone3": kernel.CLONE3,
        "socket": kernel.SOCKET,
    }
    ours = {name: numbers[column] for name, numbers in listed.items() if name in known}
    assert len(ours) > 35
    assert ours == {name: int(known[name]) for name in ours}
