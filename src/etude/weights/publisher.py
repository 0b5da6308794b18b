"""The trainer's end: puts each new version at the head of the chain.

Invariant: deltas are taken against the published head, never against what some receiver is thought to hold, and the
publisher's own copy moves only after the head did. So a publish that failed can be repeated, or given up, and nothing
drifts; and a publisher that was replaced by another one can never move the head again.
"""

import os
import time

import msgspec

from etude.records import PolicyVersion, UserError
from etude.weights.chain import FORMAT, BlobRef, Chain, Kind, Manifest
from etude.weights.delta import commit, diff_weights, encode_delta, encode_full
from etude.weights.digest import Digest, digest_change, state_digest
from etude.weights.store import HeadEntry
from etude.weights.tensors import Weights, copy_weights, groups, subset, table_hash, total_bytes, total_elements

_GROUP_BYTES = 256 << 20  # bits that go into one blob: bounds what encoding and decoding hold at once


class PublishReport(msgspec.Struct, frozen=True):
    """What one publish did.

    kind: BASE where replicas must load a full snapshot, else DELTA. delta_bytes: blobs of that kind, as uploaded.
    full_bytes: all weights uncompressed. ratio: full_bytes / delta_bytes. changed: elements that differ from the
    version before, all of them for a base. elements: of all weights. seconds: wall time of the call.
    """

    version: PolicyVersion
    kind: Kind
    delta_bytes: int
    full_bytes: int
    ratio: float
    changed: int
    elements: int
    seconds: float


class Publisher:
    """Publishes weights to `chain`; its first `publish` writes a base, later ones deltas.

    weights: any bits of the right table, e.g. the weights at `step`; they are copied (host memory: once their size).
    base_every: versions after which a base is written beside the delta, so that joining costs at most that many deltas.
    A chain that has a head already gets a new branch; `resume` goes on where a checkpoint was made instead.
    """

    def __init__(self, chain: Chain, weights: Weights, step: int, base_every: int = 64) -> None:
        if base_every < 1:
            raise ValueError(f"base_every must be at least 1, got {base_every}")
        self.chain = chain
        self.base_every = base_every
        self._shadow = copy_weights(weights)
        self._digest: Digest = state_digest(self._shadow)
        self._step = step
        self._table = table_hash(weights)
        self._head = chain.store.head()
        self._generation = self._head.generation + 1 if self._head else 1
        self._owner = os.urandom(8).hex()
        self._manifest: tuple[str, Manifest] | None = None  # of the version that the copy holds, once published

    @classmethod
    def resume(cls, chain: Chain, weights: Weights, step: int, base_every: int = 64) -> "Publisher":
        """Go on from a checkpoint, as a new generation that fences every publisher before it.

        The head becomes the checkpoint's version: where the chain has it, at its manifest (the head may be ahead, when
        the trainer was killed after publishing; that branch stays readable), else by publishing it as a base.
        Raises UserError when the chain holds tensors of another model, WeightsError when somebody else claims it at the
        same moment, InfraError when the store cannot be reached.
        """
        publisher = cls(chain, weights, step, base_every)
        latest = chain.head()
        if latest is not None and latest.table != publisher._table:
            raise UserError(
                f"{chain.store.url}: this chain holds tensors of another model; choose another folder for it"
            )
        name = chain.find(publisher.version)
        if name is None:
            publisher.publish(weights, step)
        else:
            publisher._move_head(name)
            publisher._manifest = name, chain.read(name)
        return publisher

    @property
    def version(self) -> PolicyVersion:
        """The version of the last publish; before the first one, of the weights that were given."""
        return PolicyVersion(self._step, self._digest.hex())

    def publish(self, weights: Weights, step: int) -> PublishReport:
        """Make `weights`, which must not change meanwhile, the head as version `step`. Costs one pass over the weights.

        Raises ValueError for another table or a step that is not after the last one; WeightsError when this publisher
        is fenced; InfraError when the store cannot be reached. After an error the head may have moved or not: publish
        the same again, or resume.
        """
        started = time.perf_counter()
        if step < self._step or (step == self._step and self._manifest is not None):
            raise ValueError(f"publish: step {step} is not after step {self._step}, which was published")
        changes = diff_weights(self._shadow, weights)
        digest = self._digest
        for change in changes:
            meta = self._shadow[change.name].meta
            digest += digest_change(change.name, meta, change.index, change.old, change.new)
        version = PolicyVersion(step, digest.hex())

        name, manifest = self._write(version, weights)
        self._move_head(name)
        self._manifest = name, manifest
        commit(changes, self._shadow)
        self._digest, self._step = digest, step

        full, elements = total_bytes(weights), total_elements(weights)
        changed = elements if manifest.kind is Kind.BASE else sum(change.index.size for change in changes)
        seconds = time.perf_counter() - started
        ratio = full / manifest.bytes
        return PublishReport(version, manifest.kind, manifest.bytes, full, ratio, changed, elements, seconds)

    def _write(self, version: PolicyVersion, weights: Weights) -> tuple[str, Manifest]:
        """Blobs and manifests of a version; nobody sees them before the head moves."""
        if self._manifest is None:
            return self._write_base(version, weights)
        parent_name, parent = self._manifest
        depth, base_step, base = parent.depth + 1, parent.base_step, parent.base or parent_name
        if depth >= self.base_every:
            base, _ = self._write_base(version, weights)
            depth, base_step = 0, version.step
        blobs = [encode_delta(subset(self._shadow, group), group) for group in groups(weights, _GROUP_BYTES)]
        manifest = self._describe(
            version, Kind.DELTA, blobs, parent=(parent_name, parent.version), base=(base, base_step), depth=depth
        )
        return self.chain.write(manifest), manifest

    def _write_base(self, version: PolicyVersion, weights: Weights) -> tuple[str, Manifest]:
        blobs = [encode_full(group) for group in groups(weights, _GROUP_BYTES)]
        manifest = self._describe(version, Kind.BASE, blobs, parent=None, base=(None, version.step), depth=0)
        return self.chain.write(manifest), manifest

    def _describe(
        self,
        version: PolicyVersion,
        kind: Kind,
        blobs: list[bytes],
        parent: tuple[str, PolicyVersion] | None,
        base: tuple[str | None, int],
        depth: int,
    ) -> Manifest:
        refs = tuple(BlobRef(self.chain.store.put_blob(blob), len(blob)) for blob in blobs)
        return Manifest(
            format=FORMAT,
            kind=kind,
            step=version.step,
            digest=version.digest,
            parent_step=parent[1].step if parent else None,
            parent_digest=parent[1].digest if parent else None,
            parent=parent[0] if parent else None,
            base_step=base[1],
            base=base[0],
            depth=depth,
            blobs=refs,
            bytes=sum(ref.length for ref in refs),
            table=self._table,
            generation=self._generation,
        )

    def _move_head(self, name: str) -> None:
        number = self._head.number + 1 if self._head else 0
        entry = HeadEntry(number, self._generation, self._owner, name)
        self.chain.store.move_head(self._head, entry)
        self._head = entry
