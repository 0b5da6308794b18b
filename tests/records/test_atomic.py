"""Files and folders are whole or absent: whatever interrupts a write, the old one survives."""

import errno
import os
from pathlib import Path

import pytest

from etude.records import UserError, directory_atomic, write_atomic
from etude.records import atomic as atomic_module


class Killed(BaseException):
    """Stands for SIGKILL: nothing below is meant to catch it."""


def raiser(error: BaseException):
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_a_write_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_atomic(path, "long old text")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_before_the_rename_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file.txt"
    write_atomic(path, "old")
    monkeypatch.setattr(os, call, raiser(Killed()))
    with pytest.raises(Killed):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_clear_error_and_the_old_file_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "file.txt"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", raiser(OSError(code, "full")))
    with pytest.raises(UserError, match=r"file\.txt: the disk is full; free some space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/below: cannot write here"):
        write_atomic(tmp_path / "file" / "below", "x")
    monkeypatch.setattr(os, "replace", raiser(OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(UserError, match=r"cannot write here \(Read-only file system\); choose another"):
        write_atomic(tmp_path / "other", "x")


def test_other_trouble_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", raiser(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        write_atomic(tmp_path / "file", "x")


def fill(path: Path, text: str) -> None:
    with directory_atomic(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text(text)


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with directory_atomic(path) as folder:
        (folder / "gone.txt").write_text("only in the old one")
        assert not path.exists()
    fill(path, "new")
    assert [str(file.relative_to(path)) for file in path.rglob("*.txt")] == ["inner/a.txt"]
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_in_the_block_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fill(path, "old")
    with pytest.raises(Killed), directory_atomic(path) as folder:
        (folder / "half.txt").write_text("half")
        raise Killed
    assert (path / "inner" / "a.txt").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_there_at_every_moment_of_its_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two renames a reader would find nothing, and a kill would leave nothing: so none is used."""
    path = tmp_path / "checkpoint"
    fill(path, "old")
    monkeypatch.setattr(os, "rename", raiser(AssertionError("the swap must be one system call")))
    fill(path, "new")
    assert (path / "inner" / "a.txt").read_text() == "new"


def test_without_the_exchange_call_a_failed_replacement_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    fill(path, "old")
    monkeypatch.setattr(atomic_module.ctypes, "CDLL", lambda *_, **__: object())  # a libc without renameat2
    fill(path, "newer")
    assert (path / "inner" / "a.txt").read_text() == "newer"
    rename, calls = os.rename, []

    def second_fails(source: object, target: object) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "full")
        rename(source, target)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(UserError, match="the disk is full"):
        fill(path, "newest")
    assert (path / "inner" / "a.txt").read_text() == "newer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_inside_the_block_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="checkpoint: the disk is full"), directory_atomic(tmp_path / "checkpoint"):
        raise OSError(errno.ENOSPC, "full")
    assert list(tmp_path.iterdir()) == []
