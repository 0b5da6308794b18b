"""Files that are whole or absent: write aside, fsync, rename. A crash or a full disk leaves the old file."""

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etude.records.errors import UserError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Replace `path` by `data` in one step. Raises UserError when the disk is full or not writable."""
    path = Path(path)
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _fsync(path.parent)


@contextlib.contextmanager
def directory_atomic(path: str | Path) -> Iterator[Path]:
    """Yield an empty sibling folder that becomes `path` when the block ends without an error.

    An existing `path` is replaced in one step; on an error nothing of the new folder remains and the old one stays.
    """
    path = Path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield temporary
            for entry in (*temporary.rglob("*"), temporary):
                if not entry.is_symlink():
                    _fsync(entry)
            os.chmod(temporary, 0o755)
            if path.exists():
                _exchange(temporary, path)
            else:
                os.rename(temporary, path)
            _fsync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # the half-made folder, or the one that was replaced


def _exchange(new: Path, path: Path) -> None:
    """Swap two folders. Rename cannot replace a folder that is not empty, so Linux is asked for RENAME_EXCHANGE;
    where the kernel or the file system lacks it, two renames leave a moment without `path`, undone on an error."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(path), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code), str(path))
    aside = new.with_name(new.name + ".old")
    os.rename(path, aside)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(aside, path)
        raise
    os.rename(aside, new)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn "no space", "read-only", "permission denied" and "a file stands where a folder should be" while writing
    `path` into one clear UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{path}: the disk is full; free some space and run the same command again") from None
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            raise UserError(f"{path}: cannot write here ({error.strerror}); choose another run folder") from None
        raise


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
