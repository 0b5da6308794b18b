"""An engine's end: follows the chain, in the memory that the engine computes with.

Invariants:
* live memory changes only inside `commit`, and only in the elements that differ; an error leaves the old version;
* a version is never taken on trust: the digest of all live bits is computed at the start and after each commit, and
  must be the one that the manifest names;
* a delta is not even fetched unless its parent digest is the digest of the bits it will be applied to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from etude.records import PolicyVersion
from etude.weights.chain import BlobRef, Chain, Kind, Manifest
from etude.weights.delta import StagedTensor, commit, diff_weights, stage_delta, stage_full, undo
from etude.weights.digest import Digest, elements_digest, state_digest
from etude.weights.tensors import TensorBits, Weights, WeightsError, subset, table_hash


class Verify(StrEnum):
    """What `Replica.commit` reads back."""

    CHANGED = "changed"  # the scattered elements
    FULL = "full"  # all live memory, so that damage done by others is found as well


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A version, decoded and checked, ready to scatter.

    origin, target: digest before and after. removed: the part of the old values in `origin`. manifests: how many
    versions are applied at once. fetched_bytes: of all blobs.
    """

    version: PolicyVersion
    origin: Digest
    target: Digest
    removed: Digest
    tensors: Sequence[StagedTensor]
    manifests: int
    fetched_bytes: int


class Replica:
    """Keeps `live`, views of an engine's memory, on a chain.

    version: what `live` holds, proven by computing its digest (WeightsError when it is another), or None when nothing
    is known: then the first `prepare` takes a base. Raises ValueError when `live` cannot be written to.
    """

    def __init__(self, live: Weights, version: PolicyVersion | None) -> None:
        for name, tensor in live.items():
            if not tensor.bits.flags.writeable:
                raise ValueError(f"tensor {name}: {tensor.meta} is read-only; a replica writes to live memory")
        self.live = live
        self._table = table_hash(live)
        self._digest = state_digest(live)
        if version is not None and version.digest != self._digest.hex():
            raise WeightsError(f"these weights have digest {self._digest.hex()}, they are not version {version}")
        self._version = version

    @property
    def version(self) -> PolicyVersion | None:
        """What live memory holds, by a digest computed from it; None while that is nothing the chain has."""
        return self._version

    def prepare(self, chain: Chain) -> Staged:
        """Fetch, check and decode what leads to the head; may run while the engine serves. Writes nothing.

        Memory: 4 bytes and two elements per changed element (8 bytes for bf16); over several versions also a copy of
        each touched tensor. Raises WeightsError when the chain is empty, broken, damaged or of other tensors,
        InfraError when the store cannot be reached.
        """
        path = chain.path_from(self._version)
        self._check_path(path)
        work = dict(self.live)  # where several versions are folded, touched tensors are replaced by copies
        staged: list[StagedTensor] = []
        digest = self._digest
        for manifest in path:
            staged = self._stage(chain, manifest, work)
            digest = _after(digest, staged, work)
            if digest.hex() != manifest.digest:
                raise WeightsError(
                    f"version {manifest.version}: its {manifest.kind} gives digest {digest.hex()}; "
                    "it is damaged or was made from other weights"
                )
            if len(path) > 1:
                self._write_to_copies(staged, work)
        if len(path) > 1:
            touched = [name for name in work if work[name] is not self.live[name]]
            staged = diff_weights(subset(self.live, touched), subset(work, touched))
        return Staged(
            version=path[-1].version if path else self._held(),
            origin=self._digest,
            target=digest,
            removed=_digest_of(staged, self.live, lambda tensor: tensor.old),
            tensors=staged,
            manifests=len(path),
            fetched_bytes=sum(manifest.bytes for manifest in path),
        )

    def commit(self, staged: Staged, verify: Verify | str = Verify.FULL) -> PolicyVersion:
        """Scatter, read back, and prove the new version; the engine must not compute meanwhile.

        Costs one pass over live memory; `verify` CHANGED costs O(changes), but keeps damage done by others under the
        new version's name.

        Committing again what is held already does nothing. Raises WeightsError, with the old values back in place,
        when the read-back bits do not have the digest of the version, or `staged` was prepared from another one. When
        the old version cannot be proven any more either (others damaged live memory), `version` becomes None, the
        engine must not serve, and the next `prepare` takes a base.
        """
        verify = Verify(verify)
        if staged.version == self._version:
            return staged.version
        if staged.origin != self._digest:
            raise WeightsError(
                f"version {staged.version}: staged from digest {staged.origin.hex()}, "
                f"but this replica holds {self._digest.hex()}; prepare again"
            )
        try:
            commit(staged.tensors, self.live)
            found = staged.origin - staged.removed + _digest_of(staged.tensors, self.live, self._read_back)
            if verify is Verify.FULL:
                found = state_digest(self.live)
            if found != staged.target:
                raise WeightsError(f"version {staged.version}: live memory has digest {found.hex()}; rolled back")
        except BaseException:
            undo(staged.tensors, self.live)
            self._prove_old()
            raise
        self._digest, self._version = found, staged.version
        return staged.version

    def _held(self) -> PolicyVersion:
        assert self._version is not None, "a path from nothing has at least a base"
        return self._version

    def _check_path(self, path: Sequence[Manifest]) -> None:
        """Every manifest is of these tensors, and every delta starts from the digest that precedes it."""
        before = self._digest.hex()
        for manifest in path:
            if manifest.table != self._table:
                raise WeightsError(
                    f"version {manifest.version}: made for other tensors (table {manifest.table[:16]}, "
                    f"here {self._table[:16]}); names, dtypes and shapes must be equal"
                )
            if manifest.kind is Kind.DELTA and manifest.parent_digest != before:
                raise WeightsError(
                    f"version {manifest.version}: its delta starts from digest {manifest.parent_digest}, "
                    f"but would be applied to {before}"
                )
            before = manifest.digest

    def _stage(self, chain: Chain, manifest: Manifest, held: Weights) -> list[StagedTensor]:
        stage = stage_full if manifest.kind is Kind.BASE else stage_delta
        return [tensor for ref in manifest.blobs for tensor in stage(_fetch(chain, ref), held)]

    def _write_to_copies(self, staged: Sequence[StagedTensor], work: dict[str, TensorBits]) -> None:
        for name in (tensor.name for tensor in staged):
            if work[name] is self.live[name]:
                work[name] = TensorBits(work[name].dtype, work[name].bits.copy())
        commit(staged, work)

    def _read_back(self, tensor: StagedTensor) -> np.ndarray:
        return self.live[tensor.name].flat[tensor.index]

    def _prove_old(self) -> None:
        digest = state_digest(self.live)
        if digest != self._digest:
            self._digest, self._version = digest, None


def _fetch(chain: Chain, ref: BlobRef) -> bytes:
    blob = chain.store.get_blob(ref.hash)
    if len(blob) != ref.length:
        raise WeightsError(f"blob {ref.hash}: {len(blob)} bytes, its manifest says {ref.length}")
    return blob


def _digest_of(staged: Sequence[StagedTensor], table: Weights, values: Callable[[StagedTensor], np.ndarray]) -> Digest:
    parts = (elements_digest(one.name, table[one.name].meta, one.index, values(one)) for one in staged)
    return sum(parts, Digest())


def _after(digest: Digest, staged: Sequence[StagedTensor], table: Weights) -> Digest:
    old = _digest_of(staged, table, lambda tensor: tensor.old)
    return digest - old + _digest_of(staged, table, lambda tensor: tensor.new)
