"""Where a chain lives: named blobs, manifests and one head, in a folder, in memory or in an object store.

Invariants:
* a blob and a manifest carry their BLAKE3 in their name, so what is read is what was written or an error;
* the head moves by compare-and-swap, and only forward: entry n + 1 is created, never replaced, and creation succeeds
  for one writer only. A folder has no conditional update; conditional creation works in every kind of store;
* blobs first, then the manifest, then the head: a reader sees a whole version or none;
* a writer of an older generation cannot move the head: whoever claims the chain creates an entry of a new generation.

    blobs/<blake3>                             bytes
    manifests/<step>-<digest>/<blake3>.json    one manifest; a version can have a delta and a base
    head/<number>.json                         {number, generation, owner, manifest}; the largest number is the head
"""

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import blake3
import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from etude.records import InfraError, PolicyVersion, UserError, disk_errors
from etude.weights.tensors import WeightsError

_HEAD_NAME = re.compile(r"head/(\d{12})\.json")


class HeadEntry(msgspec.Struct, frozen=True):
    """One position of the head.

    number: counts up by one. generation: fencing token, grows when a publisher claims the chain.
    owner: random name of the publisher that wrote it. manifest: name of the manifest it points to.
    """

    number: int
    generation: int
    owner: str
    manifest: str


class Store:
    """Blobs, manifests and the head under one URL.

    url: a folder (made when absent), "file:///...", "memory://" (a new store in this process), or any URL that obstore
    knows, with its credentials in the environment. All methods raise InfraError when the store cannot be reached,
    UserError when it refuses access, and WeightsError when what it holds is missing or damaged.
    """

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        self._objects = _open(self.url)
        self._seen = 0  # head number below which nothing new can be: entries are never removed

    def put_blob(self, data: bytes) -> str:
        """Store `data` and return its name; storing it again heals a damaged copy."""
        name = blake3.blake3(data).hexdigest()
        self._write(f"blobs/{name}", data)
        return name

    def get_blob(self, name: str) -> bytes:
        """The bytes of that name."""
        return self._read_hashed(f"blobs/{name}", name)

    def put_manifest(self, version: PolicyVersion, data: bytes) -> str:
        """Store a manifest of `version` and return its name."""
        name = f"{_folder(version)}/{blake3.blake3(data).hexdigest()}"
        self._write(f"manifests/{name}.json", data)
        return name

    def get_manifest(self, name: str) -> bytes:
        """The bytes of the manifest of that name."""
        return self._read_hashed(f"manifests/{name}.json", name.rpartition("/")[2])

    def manifests_of(self, version: PolicyVersion) -> list[str]:
        """Names of all manifests of `version`, sorted; empty when the store has none."""
        folder = f"manifests/{_folder(version)}"
        return sorted(path.removeprefix("manifests/").removesuffix(".json") for path in self._list(folder))

    def head(self) -> HeadEntry | None:
        """The newest entry; None while nothing was published."""
        after = f"head/{self._seen - 1:012d}.json" if self._seen else None
        found = [match for path in self._list("head", after) if (match := _HEAD_NAME.fullmatch(path))]
        if not found:
            return None
        self._seen = max(int(match[1]) for match in found)
        return self._entry(self._seen)

    def move_head(self, expected: HeadEntry | None, entry: HeadEntry) -> None:
        """Make `entry` the head if `expected` still is.

        Raises WeightsError when another writer moved it: this one is fenced and must stop. A repeated call after a lost
        answer succeeds.
        """
        current = self.head()
        if current == entry:
            return
        if current != expected or (expected is not None and entry.generation < expected.generation):
            raise WeightsError(_fenced(self.url, current, entry))
        if entry.number != (0 if expected is None else expected.number + 1):
            raise ValueError(f"head entry {entry.number} cannot follow {expected}")
        if not self._create(f"head/{entry.number:012d}.json", msgspec.json.encode(entry)):
            winner = self._entry(entry.number)
            if winner != entry:
                raise WeightsError(_fenced(self.url, winner, entry))

    def _entry(self, number: int) -> HeadEntry:
        data = self._read(f"head/{number:012d}.json")
        try:
            return msgspec.json.decode(data, type=HeadEntry)
        except msgspec.MsgspecError as error:
            raise WeightsError(f"{self.url}: head entry {number} is damaged: {error}") from None

    def _read_hashed(self, path: str, name: str) -> bytes:
        data = self._read(path)
        found = blake3.blake3(data).hexdigest()
        if found != name:
            raise WeightsError(f"{self.url}: {path} holds {len(data)} bytes of BLAKE3 {found}; damaged")
        return data

    def _read(self, path: str) -> bytes:
        with _reaching(f"{self.url}: {path}"):
            try:
                return bytes(obstore.get(self._objects, path).bytes())
            except FileNotFoundError:
                raise WeightsError(f"{self.url}: {path} is missing") from None

    def _write(self, path: str, data: bytes) -> None:
        with _reaching(f"{self.url}: {path}"):
            obstore.put(self._objects, path, data)

    def _create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist yet; False when it does."""
        with _reaching(f"{self.url}: {path}"):
            try:
                obstore.put(self._objects, path, data, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def _list(self, prefix: str, after: str | None = None) -> list[str]:
        with _reaching(f"{self.url}: {prefix}"):
            batches = obstore.list(self._objects, prefix, offset=after)
            return [entry["path"] for entry in itertools.chain.from_iterable(batches)]


def _open(url: str) -> ObjectStore:
    if url.startswith("memory://"):
        return MemoryStore()
    if "://" not in url or url.startswith("file://"):
        folder = Path(unquote(url.removeprefix("file://")) if "://" in url else url)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return LocalStore(folder)
    try:
        return from_url(url)
    except (BaseError, ValueError) as error:
        raise UserError(f"{url}: not a store that can be opened: {_first_line(error)}") from None


@contextlib.contextmanager
def _reaching(what: str) -> Iterator[None]:
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise UserError(f"{what}: access refused, check the store's credentials: {_first_line(error)}") from None
    except (BaseError, OSError) as error:
        raise InfraError(f"{what}: the store cannot be reached: {_first_line(error)}") from error


def _folder(version: PolicyVersion) -> str:
    return f"{version.step:012d}-{version.digest}"


def _fenced(url: str, current: HeadEntry | None, entry: HeadEntry) -> str:
    holder = f"generation {current.generation} at entry {current.number}" if current else "nobody"
    return (
        f"{url}: the head belongs to {holder}; this publisher (generation {entry.generation}, entry {entry.number}) "
        "is fenced: another one runs, or ran after it. Resume from a checkpoint to claim the chain"
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
