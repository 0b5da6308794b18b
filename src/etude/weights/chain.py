"""The chain of versions: a base and the deltas that follow it, each described by a manifest.

Invariant: a manifest is immutable, names its parent by content, and says which digest it starts from and which it leads
to; so a path of manifests is a proof of what must be in memory after each of them. Forks are open: after a resume from
an older checkpoint the head names another branch, and every manifest of the old one stays readable.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from etude.records import PolicyVersion
from etude.weights.store import Store
from etude.weights.tensors import WeightsError

FORMAT = 1


Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
DigestHex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Kind(StrEnum):
    """What a manifest's blobs hold."""

    BASE = "base"
    DELTA = "delta"


class BlobRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One blob. hash: its BLAKE3 and name in the store; length: bytes."""

    hash: Hash
    length: Count


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to get one version.

    step, digest: the version it leads to. parent_step, parent_digest, parent: the version a delta starts from, and the
    name of its manifest; None for a base. base_step, base: the nearest version that has a base, and that manifest's
    name; for a base its own step and None. depth: versions since that base. blobs: to be decoded in this order;
    bytes: their total length. table: hash of the tensor table. generation: fencing token of the publisher.
    """

    format: int
    kind: Kind
    step: int
    digest: DigestHex
    parent_step: int | None
    parent_digest: DigestHex | None
    parent: str | None
    base_step: int
    base: str | None
    depth: Count
    blobs: tuple[BlobRef, ...]
    bytes: Count
    table: Hash
    generation: Count

    @property
    def version(self) -> PolicyVersion:
        return PolicyVersion(self.step, self.digest)

    @property
    def parent_version(self) -> PolicyVersion | None:
        """The version that a delta starts from; None for a base."""
        if self.parent_step is None or self.parent_digest is None:
            return None
        return PolicyVersion(self.parent_step, self.parent_digest)


class Chain:
    """Reads and extends the chain in a store (or at a URL, see `Store`). Errors are those of the store."""

    def __init__(self, store: Store | str | Path) -> None:
        self.store = store if isinstance(store, Store) else Store(store)

    def head(self) -> Manifest | None:
        """The manifest of the newest version; None while nothing was published."""
        entry = self.store.head()
        return self.read(entry.manifest) if entry else None

    def manifest(self, version: PolicyVersion) -> Manifest:
        """The manifest of `version`, a delta before a base. Raises WeightsError when the chain does not have one."""
        name = self.find(version)
        if name is None:
            raise WeightsError(f"{self.store.url}: no manifest of version {version}")
        return self.read(name)

    def find(self, version: PolicyVersion) -> str | None:
        """The name of the manifest of `version`, a delta before a base; None when the chain does not have one."""
        found = [(self.read(name).kind is Kind.BASE, name) for name in self.store.manifests_of(version)]
        return min(found)[1] if found else None

    def read(self, name: str) -> Manifest:
        """The manifest of that name, checked. Raises WeightsError when it is missing, damaged or of another format."""
        try:
            manifest = msgspec.json.decode(self.store.get_manifest(name), type=Manifest)
        except msgspec.MsgspecError as error:
            raise WeightsError(f"{self.store.url}: manifest {name} cannot be read: {error}") from None
        if manifest.format != FORMAT:
            raise WeightsError(f"{self.store.url}: manifest {name} has format {manifest.format}, expected {FORMAT}")
        is_delta = manifest.kind is Kind.DELTA
        if is_delta != (manifest.parent_version is not None) or is_delta != (manifest.parent is not None):
            raise WeightsError(f"{self.store.url}: manifest {name} is a {manifest.kind} with parent {manifest.parent}")
        return manifest

    def write(self, manifest: Manifest) -> str:
        """Store a manifest and return its name; readers see it when the head leads to it."""
        return self.store.put_manifest(manifest.version, msgspec.json.encode(manifest))

    def path_from(self, version: PolicyVersion | None) -> list[Manifest]:
        """The manifests that lead from a held version to the head, in order; from None: a base and its deltas.

        Empty when the head is held. Also a base and its deltas where `version` is on another branch, was pruned, or is
        so far behind that this is fewer bytes. Raises WeightsError when the chain is empty or broken.
        """
        manifest = self.head()
        if manifest is None:
            raise WeightsError(f"{self.store.url}: no version was published here yet")
        deltas: list[Manifest] = []
        while manifest.version != version:
            if manifest.kind is Kind.BASE or manifest.base_step == manifest.step:
                return self._over_base(manifest, deltas, version)
            deltas.insert(0, manifest)
            manifest = self._parent(manifest)
        return deltas

    def _over_base(self, manifest: Manifest, deltas: list[Manifest], version: PolicyVersion | None) -> list[Manifest]:
        """A base of `manifest`'s version and the deltas after it, unless going on back to `version` is fewer bytes."""
        over_base = [self.read(manifest.base) if manifest.base else manifest, *deltas]
        budget = sum(step.bytes for step in over_base)
        while version is not None and manifest.kind is Kind.DELTA:
            deltas = [manifest, *deltas]
            if sum(step.bytes for step in deltas) >= budget:
                break
            try:
                manifest = self._parent(manifest)
            except WeightsError:  # pruned: the base is the way that is left
                break
            if manifest.version == version:
                return deltas
        return over_base

    def _parent(self, manifest: Manifest) -> Manifest:
        assert manifest.parent is not None, "only deltas are followed"
        parent = self.read(manifest.parent)
        if parent.version != manifest.parent_version:
            raise WeightsError(
                f"{self.store.url}: version {manifest.version} says its parent is {manifest.parent_version}, "
                f"but names the manifest of {parent.version}"
            )
        return parent
