"""Failure kinds, each injected: refused, rolled back or repaired, and live memory is what its version says. Always."""

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.records import InfraError, PolicyVersion
from etude.weights import (
    Chain,
    HeadEntry,
    Manifest,
    Publisher,
    Replica,
    Store,
    TensorBits,
    WeightsError,
    commit,
    copy_weights,
    decode_full,
    encode_delta,
    encode_full,
    stage_delta,
    stage_full,
    state_digest,
)
from etude.weights.delta import _HEADER_AT
from tests.weights.cases import model, reseal, same, train

OLD, NEW = model(), copy_weights(model())
train(NEW, seed=1)
DELTA, BASE = encode_delta(OLD, NEW), encode_full(NEW)


def published(url: str | Path = "memory://", last: int = 3) -> tuple[Chain, list[dict[str, TensorBits]]]:
    """A chain with steps 0 to `last`, and the weights of each."""
    chain, weights = Chain(url), model()
    publisher = Publisher.resume(chain, weights, 0)
    history = [copy_weights(weights)]
    for step in range(1, last + 1):
        train(weights, seed=step)
        publisher.publish(weights, step)
        history.append(copy_weights(weights))
    return chain, history


def at(history: list[dict[str, TensorBits]], step: int) -> Replica:
    """A replica that serves the weights of `step`."""
    version = PolicyVersion(step, state_digest(history[step]).hex())
    return Replica(copy_weights(history[step]), version)


def forge(chain: Chain, manifest: Manifest, **fields: object) -> None:
    """Put `manifest` with some fields changed at the head, as a broken publisher of a later generation would."""
    head = chain.store.head()
    name = chain.write(msgspec.structs.replace(manifest, **fields))
    chain.store.move_head(head, HeadEntry(head.number + 1, head.generation + 1, "forger", name))


def refused(replica: Replica, chain: Chain, message: str) -> None:
    """`replica` refuses the head and keeps serving what it had."""
    version, before = replica.version, copy_weights(replica.live)
    with pytest.raises(WeightsError, match=message):
        replica.commit(replica.prepare(chain))
    assert same(replica.live, before)
    assert replica.version == version
    assert version is None or state_digest(replica.live).hex() == version.digest


# Wire and store


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([DELTA, BASE]), st.data())
def test_a_bit_flipped_blob_is_refused(blob: bytes, data: st.DataObject) -> None:
    damaged = bytearray(blob)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if bytes(damaged) == blob:
        return
    live = model()
    for stage in (stage_delta, stage_full):
        with pytest.raises(WeightsError):
            stage(bytes(damaged), live)
    assert same(live, OLD)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([DELTA, BASE]), st.data())
def test_a_truncated_or_extended_blob_is_refused(blob: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(blob) - 1))
    for damaged in (blob[:cut], blob[cut:][1:], blob + blob[: cut + 1], reseal(blob[: max(cut, _HEADER_AT)])):
        with pytest.raises(WeightsError):
            (stage_delta if blob is DELTA else stage_full)(damaged, model())


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([DELTA, BASE]), st.data())
def test_a_forged_blob_raises_weights_error_or_decodes_within_its_tensors(blob: bytes, data: st.DataObject) -> None:
    """With a right hash: the checks behind it hold alone. Wrong values that decode are the state digest's to find."""
    forged = bytearray(blob)
    for _ in range(data.draw(st.integers(1, 4))):
        forged[data.draw(st.integers(16, len(blob) - 1))] = data.draw(st.integers(0, 255))
    live = model()
    for read in (stage_delta, stage_full):
        try:
            staged = read(reseal(bytes(forged)), live)
        except WeightsError:
            continue
        commit(staged, live)
        assert all(live[name].meta == OLD[name].meta for name in OLD)
    with contextlib.suppress(WeightsError):
        decode_full(reseal(bytes(forged)))


def pack(kind: int, entries: list[object], payload: bytes, header_size: int | None = None) -> bytes:
    header = msgspec.msgpack.encode(entries)
    size = len(header) if header_size is None else header_size
    return reseal(struct.pack("<4sHHQ", b"ETWB", 1, kind, size) + bytes(32) + header + payload)


@pytest.mark.parametrize(("magic", "version"), [(b"ETWA", 1), (b"ETWB", 2)])
def test_a_blob_of_another_kind_or_version_is_refused(magic: bytes, version: int) -> None:
    foreign = reseal(struct.pack("<4sH", magic, version) + DELTA[6:])
    with pytest.raises(WeightsError, match=f"starts with {magic!r} version {version}, expected b'ETWB' version 1"):
        stage_delta(foreign, model())


BOMB = zstandard.ZstdCompressor().compress(bytes(64 << 20))  # 64 MiB in 2 KB
LIAR = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + bytes(20)  # a frame that declares 1 TiB


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (pack(0, [["scale", "float32", [1 << 40], 1, len(LIAR)]], LIAR), r"scale is float32\[1099511627776\], here"),
        (pack(0, [["scale", "float32", [], 1, len(LIAR)]], LIAR), "needs 4 bytes, its frame of .* 1099511627776"),
        (pack(0, [["scale", "float32", [], 0, len(BOMB)]], BOMB), "needs 4 bytes, its frame of .* declares 67108864"),
        (pack(0, [["scale", "float32", [], 0, 1 << 40]], b""), "payloads of 1099511627776 bytes declared, 0 follow"),
        (pack(0, [["scale", "float32", [], 0, -1], ["unused", "bfloat16", [0, 32], 0, 1]], b""), "impossible tensor"),
        (pack(0, [], b"", header_size=1 << 60), "declares a header of 1152921504606846976 bytes"),
        (pack(0, [["scale", "float32", [], 0, 0]] * 2, b""), "not sorted by name, or one comes twice"),
        (pack(0, [["scale", "float32", [], 2, 0]], b""), "the header cannot be read"),
        (pack(0, [["scale", "pickle", [], 0, 0]], b""), "impossible tensor scale: pickle"),
        (pack(1, [["scale", "float32", [], 0, 0]], b""), "expected a delta"),
    ],
)
def test_a_huge_or_impossible_size_is_refused_with_bounded_memory(blob: bytes, message: str) -> None:
    live = model()
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError, match=message):
            stage_delta(blob, live)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert same(live, OLD)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["w", "uint8", [1 << 40], 1, len(LIAR)], "declares 1099511627776"),
        (["w", "uint8", [1 << 30] * 3, 1, len(LIAR)], "impossible tensor"),
        (["w", "uint8", [1] * 65, 1, len(LIAR)], "impossible tensor"),
        (["w", "uint8", [4], 0, len(LIAR)], "of a base is coded as a change"),
    ],
)
def test_a_base_cannot_declare_more_than_its_bytes_could_hold(entry: list[object], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        decode_full(pack(1, [entry], LIAR))


def test_a_damaged_blob_in_the_store_is_refused(tmp_path: Path) -> None:
    chain, history = published(tmp_path)
    blob = tmp_path / "blobs" / chain.head().blobs[0].hash
    good = blob.read_bytes()
    for bad in (good[:-1], good[:-1] + bytes([good[-1] ^ 1]), b"", None):
        blob.unlink() if bad is None else blob.write_bytes(bad)
        refused(at(history, 2), chain, "damaged|missing")
    blob.write_bytes(good)
    replica = at(history, 2)
    replica.commit(replica.prepare(chain), "full")
    assert same(replica.live, history[3])


def test_a_manifest_whose_blobs_are_other_blobs_is_refused() -> None:
    """A wrong length, a blob that comes twice, one that is left out, and one of another version."""
    chain, history = published()
    (blob,), other = chain.head().blobs, chain.path_from(None)[1].blobs
    wrong = msgspec.structs.replace(blob, length=blob.length + 1)
    forge(chain, chain.head(), blobs=(wrong,))
    refused(at(history, 2), chain, f"{blob.length} bytes, its manifest says {blob.length + 1}")
    for blobs in ((blob, blob), (), other):
        forge(chain, chain.head(), blobs=blobs)
        refused(at(history, 2), chain, "damaged or was made from other weights")


class Killed(BaseException):
    """Stands for SIGKILL: nothing below is meant to catch it."""


class Dying(Store):
    """A store whose writer dies at write number `dies_at`, just before or just after it took effect."""

    writes, dies_at, after = 0, -1, False

    def _write(self, path: str, data: bytes) -> None:
        self._dying(lambda: Store._write(self, path, data))

    def _create(self, path: str, data: bytes) -> bool:
        return self._dying(lambda: Store._create(self, path, data))

    def _dying(self, effect: Callable[[], bool | None]) -> bool:
        self.writes += 1
        if self.writes != self.dies_at:
            return bool(effect())
        if self.after:
            effect()
        raise Killed


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_between_blob_and_head_leaves_a_readable_chain(tmp_path: Path, after: bool) -> None:
    """At every write: a reader sees the old version or the new one, whole; the trainer resumes from its checkpoint."""
    for dies_at in range(1, 7):  # base, its manifest, delta, its manifest, head: five writes
        url = tmp_path / f"chain{dies_at}"
        store, weights = Dying(url), model()
        chain = Chain(store)
        publisher = Publisher.resume(chain, weights, 0, base_every=2)
        train(weights, seed=1)
        publisher.publish(weights, 1)
        before = copy_weights(weights)
        train(weights, seed=2)
        store.writes, store.dies_at, store.after = 0, dies_at, after
        survived = False
        try:
            publisher.publish(weights, 2)
            survived = True
        except Killed:
            pass
        assert survived == (dies_at == 6)

        fresh = Chain(url)
        moved = survived or (after and dies_at == 5)
        assert fresh.head().step == (2 if moved else 1)
        replica = Replica(copy_weights(model()), None)
        replica.commit(replica.prepare(fresh), "full")
        assert same(replica.live, weights if moved else before)

        resumed = Publisher.resume(fresh, before, 1)
        train(before, seed=2)
        resumed.publish(before, 2)
        replica.commit(replica.prepare(fresh), "full")
        assert same(replica.live, weights)


@pytest.mark.parametrize("after", [False, True])
def test_a_publish_that_failed_can_be_repeated(after: bool) -> None:
    for dies_at in range(1, 4):
        store, weights = Dying("memory://"), model()
        chain = Chain(store)
        publisher = Publisher.resume(chain, weights, 0)
        replica = Replica(copy_weights(weights), publisher.version)
        train(weights, seed=1)
        store.writes, store.dies_at, store.after = 0, dies_at, after
        with pytest.raises(Killed):
            publisher.publish(weights, 1)
        publisher.publish(weights, 1)
        train(weights, seed=2)
        publisher.publish(weights, 2)
        replica.commit(replica.prepare(chain), "full")
        assert same(replica.live, weights)


def test_a_store_that_is_away_is_infrastructure_and_changes_nothing(tmp_path: Path) -> None:
    chain, history = published(tmp_path / "chain")
    replica = at(history, 2)
    (tmp_path / "chain").rename(tmp_path / "away")
    (tmp_path / "chain").write_text("")
    with pytest.raises(InfraError):
        replica.prepare(chain)
    assert same(replica.live, history[2]) and replica.version.step == 2


def test_a_stale_publisher_is_fenced(tmp_path: Path) -> None:
    weights = model()
    stale = Publisher.resume(Chain(tmp_path), weights, 0)
    current = Publisher.resume(Chain(tmp_path), weights, 0)
    train(weights, seed=1)
    with pytest.raises(
        WeightsError, match=r"generation 2 at entry 1; this publisher \(generation 1, entry 1\) is fenced"
    ):
        stale.publish(weights, 1)
    current.publish(weights, 1)
    with pytest.raises(WeightsError, match="fenced"):
        stale.publish(weights, 1)
    assert Chain(tmp_path).head().version == current.version


# Chain and base


def test_a_version_advanced_without_weights_is_refused() -> None:
    chain, history = published()
    lie = PolicyVersion(4, state_digest(model(seed=9)).hex())
    head = chain.head()
    forge(
        chain,
        head,
        step=4,
        digest=lie.digest,
        blobs=(),
        bytes=0,
        parent_step=3,
        parent_digest=head.digest,
        parent=chain.find(head.version),
    )
    refused(at(history, 3), chain, f"version {lie}: its delta gives digest")


def test_a_replica_never_takes_a_version_on_trust() -> None:
    _, history = published()
    with pytest.raises(WeightsError, match="they are not version 3@"):
        Replica(copy_weights(history[2]), PolicyVersion(3, state_digest(history[3]).hex()))


def test_a_delta_applied_twice_is_harmless() -> None:
    chain, history = published()
    replica = at(history, 2)
    staged = replica.prepare(chain)
    version = replica.commit(staged)
    assert replica.commit(staged) == version
    commit(staged.tensors, replica.live)
    assert same(replica.live, history[3]) and state_digest(replica.live).hex() == version.digest


def test_a_delta_staged_for_another_version_is_refused() -> None:
    chain, history = published()
    replica = at(history, 1)
    early = replica.prepare(chain)
    replica.commit(at(history, 1).prepare(chain))
    publisher = Publisher.resume(chain, history[3], 3)
    train(history[3], seed=7)
    publisher.publish(history[3], 4)
    replica.commit(replica.prepare(chain))
    with pytest.raises(WeightsError, match=r"but this replica holds .* prepare again"):
        replica.commit(early)
    assert same(replica.live, history[3]) and replica.version.step == 4


def test_a_pruned_chain_on_the_wrong_base_is_refused(tmp_path: Path) -> None:
    """Manifests 0 to 2 are gone; the head says its delta starts from the original base. No blob is even fetched."""
    chain, history = published(tmp_path)
    base = chain.path_from(None)[0]
    forge(chain, chain.head(), parent_step=0, parent_digest=base.digest, parent=chain.find(base.version))
    for blob in chain.head().blobs:
        (tmp_path / "blobs" / blob.hash).write_bytes(b"never read: the wrong base is known before")
    replica = at(history, 1)
    replica._version = base.version  # a label that somebody set
    refused_version = replica.version
    with pytest.raises(WeightsError, match=f"starts from digest {base.digest}, but would be applied to"):
        replica.prepare(chain)
    assert replica.version == refused_version and same(replica.live, history[1])


def test_a_delta_on_the_right_label_but_the_wrong_bits_is_found_before_the_pause() -> None:
    chain, history = published()
    base = chain.path_from(None)[0]
    forge(chain, chain.head(), parent_step=0, parent_digest=base.digest, parent=chain.find(base.version))
    refused(at(history, 0), chain, "damaged or was made from other weights")


def test_a_replica_whose_version_was_pruned_takes_the_base(tmp_path: Path) -> None:
    chain, weights = Chain(tmp_path), model()
    publisher = Publisher.resume(chain, weights, 0, base_every=2)
    replica = Replica(copy_weights(weights), publisher.version)
    for step in (1, 2, 3):
        train(weights, seed=step)
        publisher.publish(weights, step)
    for step in (0, 1):
        for folder in tmp_path.glob(f"manifests/{step:012d}-*/*"):
            folder.unlink()
    replica.commit(replica.prepare(chain), "full")
    assert same(replica.live, weights)


def test_a_chain_without_its_base_is_broken_and_said_to_be(tmp_path: Path) -> None:
    chain, history = published(tmp_path)
    for file in tmp_path.glob("manifests/000000000000-*/*"):
        file.unlink()
    refused(Replica(copy_weights(history[0]), None), chain, "is missing")


def test_swapped_parents_are_refused() -> None:
    """The head names the manifest of version 1 as its parent, but says that it starts from version 2."""
    chain, history = published()
    first = PolicyVersion(1, state_digest(history[1]).hex())
    forge(chain, chain.head(), parent=chain.find(first))
    refused(at(history, 1), chain, "says its parent is 2@.* but names the manifest of 1@")


def test_a_manifest_that_is_damaged_or_of_another_format_is_refused(tmp_path: Path) -> None:
    chain, history = published(tmp_path)
    good = chain.head()
    forge(chain, good, format=2)
    refused(at(history, 2), chain, "has format 2, expected 1")
    forge(chain, good, parent=None)
    refused(at(history, 2), chain, "is a delta with parent None")
    forge(chain, good, blobs=[{"hash": "../../etc", "length": 1}])
    refused(at(history, 2), chain, "cannot be read: .*hash")
    for file in tmp_path.glob("manifests/000000000003-*/*"):
        file.write_text("{}")
    refused(at(history, 2), chain, "damaged")


@pytest.mark.parametrize("change", ["dtype", "shape", "missing", "more"])
def test_a_wrong_table_is_refused(change: str) -> None:
    chain, _ = published()
    live = model()
    if change == "dtype":
        live["router.bias"] = TensorBits("int32", live["router.bias"].bits)
    elif change == "shape":
        live["embed.weight"] = TensorBits("bfloat16", live["embed.weight"].bits.reshape(32, 64))
    elif change == "missing":
        del live["scale"]
    else:
        live["lm_head.weight"] = copy_weights(live)["embed.weight"]
    refused(Replica(live, None), chain, "made for other tensors")


def test_a_delta_for_another_table_names_the_tensor() -> None:
    live = model()
    live["embed.weight"] = TensorBits("bfloat16", live["embed.weight"].bits.reshape(32, 64))
    with pytest.raises(WeightsError, match=r"embed.weight is bfloat16\[64, 32\], here bfloat16\[32, 64\]"):
        stage_delta(DELTA, live)
    del live["embed.weight"]
    with pytest.raises(WeightsError, match=r"embed.weight is bfloat16\[64, 32\], here absent"):
        stage_delta(DELTA, live)


# Apply


def test_a_commit_that_dies_halfway_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, history = published()
    replica = at(history, 2)
    staged = replica.prepare(chain)

    def half(tensors, live) -> None:
        commit(tensors[:1], live)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("etude.weights.replica.commit", half)
        with pytest.raises(Killed):
            replica.commit(staged)
    assert same(replica.live, history[2]) and replica.version.step == 2
    replica.commit(staged, "full")
    assert same(replica.live, history[3])


def test_an_apply_that_writes_wrong_values_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wire and blob are fine, the scatter is not: only reading back finds it."""
    chain, history = published()
    replica = at(history, 2)
    staged = replica.prepare(chain)

    def wrong(tensors, live) -> None:
        commit(tensors, live)
        live[tensors[0].name].flat[tensors[0].index[0]] ^= 4

    monkeypatch.setattr("etude.weights.replica.commit", wrong)
    with pytest.raises(WeightsError, match=r"live memory has digest .* rolled back"):
        replica.commit(staged)
    assert same(replica.live, history[2])
    assert replica.version.step == 2


def test_damage_done_by_others_is_found_and_repaired_from_a_base() -> None:
    chain, history = published()
    replica = at(history, 2)
    staged = replica.prepare(chain)
    touched = {one.name: set(one.index.tolist()) for one in staged.tensors}["embed.weight"]
    untouched = next(i for i in range(64 * 32) if i not in touched)
    replica.live["embed.weight"].flat[untouched] ^= 1
    with pytest.raises(WeightsError, match="rolled back"):
        replica.commit(staged)
    assert replica.version is None, "it holds nothing that the chain knows, and says so"
    assert replica.commit(replica.prepare(chain)).step == 3
    assert same(replica.live, history[3])


def test_read_only_memory_is_refused_at_the_start() -> None:
    live = model()
    live["scale"].bits.flags.writeable = False
    with pytest.raises(ValueError, match=r"tensor scale: float32\[\] is read-only"):
        Replica(live, None)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_nothing_changed_and_everything_changed(share: float) -> None:
    weights = model()
    chain = Chain("memory://")
    publisher = Publisher.resume(chain, weights, 0)
    replica = Replica(copy_weights(weights), publisher.version)
    if share:
        for tensor in weights.values():
            tensor.flat[:] = ~tensor.flat
    report = publisher.publish(weights, 1)
    assert report.changed == share * report.elements
    replica.commit(replica.prepare(chain), "full")
    assert same(replica.live, weights)


def test_nan_payloads_and_negative_zero_survive() -> None:
    """A NaN to another NaN, 0.0 to -0.0 and back: float comparison would see none of the zeros and all of the NaNs."""
    before = np.array([0x7FC0, 0x7FC1, 0xFFC0, 0x0000, 0x8000, 0x7F80, 0x7FC0], np.uint16)
    after = np.array([0x7FC1, 0x7FC0, 0x7FFF, 0x8000, 0x0000, 0xFF80, 0x7FC0], np.uint16)
    weights = {"w": TensorBits("bfloat16", before)}
    chain = Chain("memory://")
    publisher = Publisher.resume(chain, weights, 0)
    replica = Replica(copy_weights(weights), publisher.version)
    report = publisher.publish({"w": TensorBits("bfloat16", after)}, 1)
    assert report.changed == 6
    replica.commit(replica.prepare(chain), "full")
    assert np.array_equal(replica.live["w"].bits, after)
    joiner = Replica({"w": TensorBits("bfloat16", np.zeros(7, np.uint16))}, None)
    joiner.commit(joiner.prepare(chain), "full")
    assert np.array_equal(joiner.live["w"].bits, after)


def test_empty_and_scalar_tensors_travel() -> None:
    weights = {
        "empty": TensorBits("bfloat16", np.zeros((3, 0), np.uint16)),
        "scalar": TensorBits("float64", np.array(1, np.uint64)),
    }
    chain = Chain("memory://")
    publisher = Publisher.resume(chain, weights, 0)
    replica = Replica(copy_weights(weights), None)
    weights["scalar"].flat[0] = 2**64 - 1
    publisher.publish(weights, 1)
    replica.commit(replica.prepare(chain), "full")
    assert same(replica.live, weights)


def test_a_model_without_tensors_has_a_chain_too() -> None:
    chain = Chain("memory://")
    publisher = Publisher.resume(chain, {}, 0)
    replica = Replica({}, None)
    assert replica.commit(replica.prepare(chain)) == publisher.version == PolicyVersion(0, "0" * 32)


def test_publishers_of_equal_weights_write_equal_bytes() -> None:
    first, second = (published()[0] for _ in range(2))
    assert first.head() == second.head()
    assert first.head().blobs[0].hash == second.head().blobs[0].hash
