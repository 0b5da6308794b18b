"""The ledger gives every rollout back bit for bit, or says which file is damaged."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.records import Outcome, PolicyVersion, Rollout, Segment, UserError, VersionSpan, encode
from etude.records.ledger import (
    Disposition,
    LedgerEntry,
    ledger_files,
    ledger_path,
    query,
    read_ledger,
    write_ledger,
)
from tests.records.strategies import entries


def entry(name: str = "r0", disposition: Disposition = Disposition.TRAINED, step: int = 3) -> LedgerEntry:
    """Six tokens, the middle two sampled by version `step - 1`."""
    logprob_T = np.full(6, np.nan, "float32")
    logprob_T[2:4] = [-0.5, -1.25]
    segment = Segment(
        np.arange(6, dtype="int32"),
        np.array([0, 0, 1, 1, 2, 2], "uint8"),
        logprob_T,
        np.full((6, 2, 2), -1, "int16"),
        (VersionSpan(2, 4, PolicyVersion(step - 1, "ab" * 16)),),
    )
    rollout = Rollout(name, "g0", "katas-1", 1, 0, (segment,), Outcome.SOLVED, 1.0, {"model": 1.5}, {"turns": 3}, "ok")
    return LedgerEntry(rollout, step, disposition, 0.5)


@given(st.lists(entries, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_ledger_gives_back_every_bit(written: list[LedgerEntry]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = ledger_path(folder, 7)
        write_ledger(path, written)
        assert encode(read_ledger(path)) == encode(written)


def test_many_rollouts_keep_their_order_across_row_groups(tmp_path: Path) -> None:
    written = [entry(f"r{index}") for index in range(150)]
    write_ledger(tmp_path / "step-000001.parquet", iter(written))
    assert encode(read_ledger(tmp_path / "step-000001.parquet")) == encode(written)
    assert pq.ParquetFile(tmp_path / "step-000001.parquet").num_row_groups == 3


def test_a_truncated_file_is_named_in_one_error(tmp_path: Path) -> None:
    path = ledger_path(tmp_path, 1)
    write_ledger(path, [entry()])
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"step-000001\.parquet: torn or damaged"):
            read_ledger(path)


def test_a_flipped_bit_in_the_pages_is_refused(tmp_path: Path) -> None:
    path = ledger_path(tmp_path, 1)
    write_ledger(path, [entry(f"r{index}") for index in range(64)])
    whole = path.read_bytes()
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    for offset in range(30, chunk.total_compressed_size, 97):
        damaged = bytearray(whole)
        damaged[chunk.dictionary_page_offset + offset] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"step-000001\.parquet"):
            read_ledger(path)


def test_a_foreign_or_missing_file_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "step-000001.parquet")
    with pytest.raises(UserError, match=r"step-000001\.parquet: a Parquet file, but not a ledger"):
        read_ledger(tmp_path / "step-000001.parquet")
    with pytest.raises(UserError, match=r"step-000002\.parquet: no such ledger file"):
        read_ledger(tmp_path / "step-000002.parquet")


def test_an_impossible_segment_is_never_written(tmp_path: Path) -> None:
    good = entry()
    segment = good.rollout.segments[0]
    bad = Segment(segment.ids_T[:5], segment.origin_T, segment.logprob_T, segment.routes_TLK, segment.spans)
    rollout = Rollout("r", "g", "t", 1, 0, (bad,), Outcome.FAILED, 0.0)
    with pytest.raises(ValueError, match="ids_T has 5 tokens but origin_T has 6"):
        write_ledger(tmp_path / "step-000001.parquet", [LedgerEntry(rollout, 1, Disposition.TRAINED)])
    assert list(tmp_path.iterdir()) == []


def test_files_are_listed_by_step(tmp_path: Path) -> None:
    for step in (12, 3, 1_000_000, 999_999):
        write_ledger(ledger_path(tmp_path, step), [])
    (tmp_path / "notes.txt").write_text("not a ledger")
    assert [path.name for path in ledger_files(tmp_path)] == [
        "step-000003.parquet", "step-000012.parquet", "step-999999.parquet", "step-1000000.parquet",
    ]  # fmt: skip
    assert ledger_files(tmp_path / "absent") == []


def test_people_can_ask_in_sql(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    write_ledger(ledger_path(folder, 3), [entry("a"), entry("b", Disposition.STALE)])
    write_ledger(ledger_path(folder, 4), [entry("c", step=4)])
    assert query(folder, "SELECT disposition, count(*) AS n FROM rollouts GROUP BY ALL ORDER BY ALL") == [
        {"disposition": "stale", "n": 1},
        {"disposition": "trained", "n": 2},
    ]
    sql = """
        SELECT tokens, sampled_tokens, step - oldest_step AS age, counts['turns'] AS turns, seconds['model'] AS s,
               segments[1].ids[3] AS third
        FROM rollouts WHERE rollout_id = 'c'
    """
    asked = query(folder, sql)
    assert asked == [{"tokens": 6, "sampled_tokens": 2, "age": 1, "turns": 3, "third": 2, "s": 1.5}]


@pytest.mark.parametrize(
    "sql",
    ["SELECT nothing FROM rollouts", "SELECT * FROM read_csv('/etc/hosts')", "COPY rollouts TO 'out.csv'", "SELEC"],
)
def test_a_wrong_or_outside_question_is_one_clear_error(tmp_path: Path, sql: str) -> None:
    write_ledger(ledger_path(tmp_path, 3), [entry()])
    with pytest.raises(UserError, match="cannot answer"):
        query(tmp_path, sql)


def test_an_empty_folder_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no ledger files"):
        query(tmp_path, "SELECT 1")


def test_a_full_disk_keeps_the_old_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ledger_path(tmp_path, 3)
    write_ledger(path, [entry("old")])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"step-000003\.parquet: the disk is full"):
        write_ledger(path, [entry("new")])
    monkeypatch.undo()
    assert [kept.rollout.rollout_id for kept in read_ledger(path)] == ["old"]
    assert ledger_files(tmp_path) == [path]
    assert len(list(tmp_path.iterdir())) == 1
