"""A store gives back what was put in or an error, and its head moves forward for one writer at a time."""

import threading
from pathlib import Path

import msgspec
import pytest

from etude.records import InfraError, PolicyVersion, UserError
from etude.weights import HeadEntry, Store, WeightsError

VERSION = PolicyVersion(7, "0" * 32)


@pytest.fixture(params=["folder", "file url", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    folder = tmp_path / "a folder" / "chain"
    return Store({"folder": str(folder), "file url": folder.as_uri(), "memory": "memory://"}[request.param])


def entry(number: int, generation: int = 1, owner: str = "a") -> HeadEntry:
    return HeadEntry(number, generation, owner, f"m{number}")


def test_a_file_url_and_a_path_are_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    name = Store(folder.as_uri()).put_blob(b"x")
    assert Store(folder).get_blob(name) == b"x"


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 30_000])
def test_a_blob_comes_back_under_its_name(store: Store, data: bytes) -> None:
    name = store.put_blob(data)
    assert store.put_blob(data) == name
    assert store.get_blob(name) == data


def test_manifests_are_listed_by_their_version(store: Store) -> None:
    names = sorted([store.put_manifest(VERSION, b"one"), store.put_manifest(VERSION, b"two")])
    store.put_manifest(PolicyVersion(8, "0" * 32), b"three")
    assert store.manifests_of(VERSION) == names
    assert {store.get_manifest(name) for name in names} == {b"one", b"two"}
    assert store.manifests_of(PolicyVersion(9, "0" * 32)) == []


def test_the_head_is_the_largest_entry(store: Store) -> None:
    assert store.head() is None
    previous = None
    for number in range(12):
        store.move_head(previous, entry(number))
        previous = store.head()
        assert previous == entry(number)


def test_a_head_read_long_ago_finds_the_new_one(store: Store) -> None:
    store.move_head(None, entry(0))
    assert store.head() == entry(0)
    other = Store(store.url) if "memory" not in store.url else store
    for number in range(1, 4):
        other.move_head(entry(number - 1), entry(number))
    assert store.head() == entry(3)


def test_repeating_a_move_whose_answer_was_lost_succeeds(store: Store) -> None:
    store.move_head(None, entry(0))
    store.move_head(None, entry(0))
    assert store.head() == entry(0)


def test_only_the_holder_of_the_head_moves_it(store: Store) -> None:
    store.move_head(None, entry(0))
    store.move_head(entry(0), entry(1, generation=2, owner="b"))
    for stale, new in ((None, entry(0, owner="c")), (entry(0), entry(1)), (entry(0), entry(1, generation=3))):
        with pytest.raises(WeightsError, match="fenced"):
            store.move_head(stale, new)
    with pytest.raises(WeightsError, match="fenced"):  # the right number, but somebody else's entry
        store.move_head(entry(1, generation=2, owner="c"), entry(2, generation=2, owner="c"))
    with pytest.raises(WeightsError, match="generation 2 at entry 1"):
        store.move_head(entry(1, generation=2, owner="b"), entry(2, generation=1))
    assert store.head() == entry(1, generation=2, owner="b")


@pytest.mark.parametrize("winner", ["b", "a"])
def test_the_loser_of_a_race_between_look_and_write_is_fenced(
    store: Store, monkeypatch: pytest.MonkeyPatch, winner: str
) -> None:
    """Whoever writes between the look and the write wins; unless it was this writer, whose answer was lost."""
    store.move_head(None, entry(0))
    create = store._create

    def late(path: str, data: bytes) -> bool:
        create(path, msgspec.json.encode(entry(1, owner=winner)))
        return create(path, data)

    monkeypatch.setattr(store, "_create", late)
    if winner == "a":
        store.move_head(entry(0), entry(1))
    else:
        with pytest.raises(WeightsError, match="fenced"):
            store.move_head(entry(0), entry(1))
    assert store.head() == entry(1, owner=winner)


def test_an_entry_cannot_skip_a_number(store: Store) -> None:
    store.move_head(None, entry(0))
    with pytest.raises(ValueError, match="head entry 2 cannot follow"):
        store.move_head(entry(0), entry(2))


def test_of_many_writers_at_once_one_wins(store: Store) -> None:
    """The compare-and-swap is real: threads that all saw the same head, none of which looks again before it writes."""
    store.move_head(None, entry(0))
    barrier, won = threading.Barrier(8), []

    def race(owner: str) -> None:
        barrier.wait()
        data = msgspec.json.encode(entry(1, owner=owner))
        if store._create("head/000000000001.json", data):
            won.append(owner)

    threads = [threading.Thread(target=race, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    head = store.head()
    assert head is not None and won == [head.owner]


def test_what_is_missing_or_damaged_is_said_to_be(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(WeightsError, match="blobs/00 is missing"):
        store.get_blob("00")
    name = store.put_blob(b"some bytes")
    (tmp_path / "blobs" / name).write_bytes(b"same bytes")
    with pytest.raises(WeightsError, match=f"blobs/{name} holds 10 bytes of BLAKE3"):
        store.get_blob(name)
    store.put_blob(b"some bytes")
    assert store.get_blob(name) == b"some bytes", "putting it again heals it"
    store.move_head(None, entry(0))
    (tmp_path / "head" / "000000000000.json").write_bytes(b"{}")
    with pytest.raises(WeightsError, match="head entry 0 is damaged"):
        store.head()


def test_a_store_that_cannot_be_reached_is_infrastructure(tmp_path: Path) -> None:
    store = Store(tmp_path / "chain")
    (tmp_path / "chain").rmdir()
    (tmp_path / "chain").write_text("a file where the folder was")
    with pytest.raises(InfraError, match="cannot be reached"):
        store.put_blob(b"x")


def test_a_url_that_is_no_store_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ftp://nowhere: not a store"):
        Store("ftp://nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write here"):
        Store(tmp_path / "file" / "chain")
