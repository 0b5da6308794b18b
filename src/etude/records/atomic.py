"""Files that are whole or absent: write aside, fsync, rename. A crash or a full disk leaves the old file."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etude.records.errors import UserError


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
        _fsync_directory(path.parent)


@contextlib.contextmanager
def directory_atomic(path: str | Path) -> Iterator[Path]:
    """Yield an empty sibling folder that becomes `path` when the block ends without an error.

    An existing `path` is replaced; on an error nothing of the new folder remains.
    """
    path = Path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
            os.chmod(temporary, 0o755)
            if path.exists():
                old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
                os.rename(path, old / path.name)
                os.rename(temporary, path)
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.rename(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _fsync_directory(path.parent)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn "no space", "read-only" and "permission denied" while writing `path` into one clear UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{path}: the disk is full; free some space and run the same command again") from None
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise UserError(f"{path}: cannot write here ({error.strerror}); choose another run folder") from None
        raise


def _fsync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
