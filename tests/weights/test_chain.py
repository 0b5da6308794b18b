"""Publisher, chain and replica together: every version arrives bit for bit, by the shortest way."""

from pathlib import Path

import numpy as np
import pytest

from etude.records import PolicyVersion, UserError
from etude.weights import (
    Chain,
    Kind,
    Publisher,
    Replica,
    TensorBits,
    Verify,
    WeightsError,
    copy_weights,
    state_digest,
    total_bytes,
    total_elements,
)
from etude.weights import publisher as publisher_module
from tests.weights.cases import model, same, train


@pytest.fixture(params=["folder", "memory"])
def chain(request: pytest.FixtureRequest, tmp_path: Path) -> Chain:
    return Chain(tmp_path / "chain" if request.param == "folder" else "memory://")


def steps(publisher: Publisher, weights: dict[str, TensorBits], first: int, last: int) -> None:
    """Train and publish steps `first` to `last`."""
    for step in range(first, last + 1):
        train(weights, seed=step)
        publisher.publish(weights, step)


def blank() -> dict[str, TensorBits]:
    """An engine's memory before it has weights."""
    return {name: TensorBits(tensor.dtype, np.zeros_like(tensor.bits)) for name, tensor in model().items()}


def test_a_replica_follows_every_version(chain: Chain) -> None:
    weights = model()
    publisher = Publisher(chain, weights, 0)
    publisher.publish(weights, 0)
    replica = Replica(blank(), None)
    for step in range(1, 6):
        assert replica.commit(replica.prepare(chain), Verify.FULL) == publisher.version
        assert same(replica.live, weights)
        train(weights, seed=step)
        publisher.publish(weights, step)
        assert publisher.version == PolicyVersion(step, state_digest(weights).hex())


def test_reports_say_what_was_published(chain: Chain) -> None:
    weights = model()
    publisher = Publisher(chain, weights, 3)
    base = publisher.publish(weights, 3)
    assert (base.kind, base.changed, base.elements) == (Kind.BASE, total_elements(weights), total_elements(weights))
    before = copy_weights(weights)
    train(weights, seed=1)
    report = publisher.publish(weights, 4)
    manifest = chain.manifest(report.version)
    assert report.version == PolicyVersion(4, state_digest(weights).hex()) == manifest.version
    assert report.kind is manifest.kind is Kind.DELTA
    assert report.changed == sum(int((before[name].bits != weights[name].bits).sum()) for name in weights)
    assert report.delta_bytes == manifest.bytes == sum(len(chain.store.get_blob(ref.hash)) for ref in manifest.blobs)
    assert report.full_bytes == total_bytes(weights)
    assert report.ratio == report.full_bytes / report.delta_bytes
    assert report.seconds > 0


def test_several_versions_are_folded_into_one_commit(chain: Chain) -> None:
    weights = model()
    publisher = Publisher.resume(chain, weights, 0)
    replica = Replica(copy_weights(weights), publisher.version)
    steps(publisher, weights, 1, 5)
    staged = replica.prepare(chain)
    assert staged.manifests == 5
    assert same(replica.live, model()), "preparing wrote to live memory"
    changed = {name: (model()[name].flat != weights[name].flat).sum() for name in weights}
    assert {one.name: one.index.size for one in staged.tensors} == {name: n for name, n in changed.items() if n}
    assert replica.commit(staged, "full") == publisher.version
    assert same(replica.live, weights)


def test_nothing_new_is_nothing_to_do(chain: Chain) -> None:
    weights = model()
    publisher = Publisher.resume(chain, weights, 0)
    replica = Replica(weights, publisher.version)
    staged = replica.prepare(chain)
    assert (staged.manifests, staged.fetched_bytes, list(staged.tensors)) == (0, 0, [])
    assert replica.commit(staged) == publisher.version


def test_a_joiner_loads_the_newest_base_and_the_deltas_after_it(chain: Chain) -> None:
    weights = model()
    publisher = Publisher.resume(chain, weights, 0, base_every=4)
    steps(publisher, weights, 1, 10)
    path = chain.path_from(None)
    assert [(manifest.kind, manifest.step) for manifest in path] == [
        (Kind.BASE, 8),
        (Kind.DELTA, 9),
        (Kind.DELTA, 10),
    ]
    assert [manifest.depth for manifest in path] == [0, 1, 2]
    for delta in path[1:]:
        base = chain.read(delta.base)
        assert (base.kind, base.step, delta.base_step) == (Kind.BASE, 8, 8)
    replica = Replica(blank(), None)
    assert replica.commit(replica.prepare(chain), "full") == publisher.version
    assert same(replica.live, weights)


def test_a_replica_that_has_a_version_takes_deltas_past_a_base(chain: Chain) -> None:
    weights = model()
    publisher = Publisher.resume(chain, weights, 0, base_every=4)
    steps(publisher, weights, 1, 3)
    replica = Replica(copy_weights(weights), publisher.version)
    steps(publisher, weights, 4, 5)
    assert [manifest.kind for manifest in chain.path_from(replica.version)] == [Kind.DELTA, Kind.DELTA]
    replica.commit(replica.prepare(chain))
    assert same(replica.live, weights)


def test_a_replica_far_behind_takes_the_base_when_that_is_fewer_bytes(chain: Chain) -> None:
    weights = model()
    publisher = Publisher.resume(chain, weights, 0, base_every=8)
    replica = Replica(copy_weights(weights), publisher.version)
    for step in range(1, 9):
        train(weights, seed=step, share=0.4)  # each delta is about a third of a base
        publisher.publish(weights, step)
    assert [manifest.kind for manifest in chain.path_from(replica.version)] == [Kind.BASE]
    replica.commit(replica.prepare(chain), "full")
    assert same(replica.live, weights)


def test_weights_that_did_not_change_get_a_version_of_their_own(chain: Chain) -> None:
    weights = model()
    publisher = Publisher.resume(chain, weights, 0)
    replica = Replica(copy_weights(weights), publisher.version)
    report = publisher.publish(weights, 1)
    assert (report.changed, report.version.digest) == (0, replica.version.digest)
    assert replica.commit(replica.prepare(chain)) == PolicyVersion(1, report.version.digest)


def test_blobs_are_cut_into_groups(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_GROUP_BYTES", 1500)
    weights = model()
    publisher = Publisher.resume(chain, weights, 0)
    steps(publisher, weights, 1, 2)
    assert all(len(manifest.blobs) == 3 for manifest in chain.path_from(None))
    replica = Replica(blank(), None)
    replica.commit(replica.prepare(chain), "full")
    assert same(replica.live, weights)


def test_resume_at_the_head_goes_on_with_deltas(chain: Chain) -> None:
    weights = model()
    steps(Publisher.resume(chain, weights, 0), weights, 1, 2)
    replica = Replica(copy_weights(weights), chain.head().version)
    publisher = Publisher.resume(chain, weights, 2)
    assert chain.head().version == publisher.version
    steps(publisher, weights, 3, 3)
    assert [manifest.step for manifest in chain.path_from(replica.version)] == [3]
    assert [manifest.step for manifest in chain.path_from(None)] == [0, 1, 2, 3]


def test_resume_behind_the_head_forks_openly(chain: Chain) -> None:
    weights = model()
    publisher = Publisher.resume(chain, weights, 0)
    steps(publisher, weights, 1, 2)
    checkpoint = copy_weights(weights)
    steps(publisher, weights, 3, 4)
    ahead, lost = copy_weights(weights), publisher.version
    replica = Replica(ahead, lost)

    resumed = Publisher.resume(chain, checkpoint, 2)
    assert chain.head().version == resumed.version, "engines go back to what the trainer has"
    replica.commit(replica.prepare(chain), "full")
    assert same(replica.live, checkpoint)
    train(checkpoint, seed=99)
    report = resumed.publish(checkpoint, 3)
    assert report.kind is Kind.DELTA
    assert [manifest.generation for manifest in chain.path_from(None)] == [1, 1, 1, 2]
    replica.commit(replica.prepare(chain), "full")
    assert same(replica.live, checkpoint)
    assert chain.manifest(lost).version == lost, "the old branch stays readable"


def test_resume_from_weights_the_chain_never_saw_publishes_a_base(chain: Chain) -> None:
    weights = model()
    steps(Publisher.resume(chain, weights, 0), weights, 1, 2)
    train(weights, seed=50)
    publisher = Publisher.resume(chain, weights, 2)
    assert [(one.kind, one.version) for one in chain.path_from(None)] == [(Kind.BASE, publisher.version)]


def test_resume_with_another_model_is_refused(chain: Chain) -> None:
    Publisher.resume(chain, model(), 0)
    other = {"w": model()["scale"]}
    with pytest.raises(UserError, match="tensors of another model"):
        Publisher.resume(chain, other, 0)


def test_a_step_is_published_once_and_in_order(chain: Chain) -> None:
    weights = model()
    publisher = Publisher.resume(chain, weights, 5)
    for step in (4, 5):
        with pytest.raises(ValueError, match=f"step {step} is not after step 5"):
            publisher.publish(weights, step)


def test_an_empty_chain_is_said_to_be(chain: Chain) -> None:
    assert chain.head() is None
    with pytest.raises(WeightsError, match="no version was published here yet"):
        Replica(blank(), None).prepare(chain)
    with pytest.raises(WeightsError, match="no manifest of version 1@"):
        chain.manifest(PolicyVersion(1, "0" * 32))
