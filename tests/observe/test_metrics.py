"""A metrics log holds whole lines, each step once, whatever killed its writer."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from etude.observe import MetricsLog, read_metrics
from etude.records import UserError


def test_what_is_written_is_read_back_in_order(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    log.write(0, loss=2.5, phase="bulk")
    log.write(1, loss=2.0, phase="bulk")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [(row["step"], row["loss"], row["phase"]) for row in rows] == [(0, 2.5, "bulk"), (1, 2.0, "bulk")]
    assert rows[0]["time"] <= rows[1]["time"]


def test_missing_is_null_and_zero_is_zero(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(0, a=float("nan"), b=float("inf"), c=0.0, d=None, e=[1.0, float("nan")], f=np.float32("nan"))
    line = json.loads(
        (tmp_path / "metrics.jsonl").read_text(),
        parse_constant=lambda name: pytest.fail(f"{name} is not JSON"),
    )
    assert {key: line[key] for key in "abcdef"} == {
        "a": None, "b": None, "c": 0.0, "d": None, "e": [1.0, None], "f": None,
    }  # fmt: skip


def test_numpy_scalars_are_numbers(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(np.int64(3), loss=np.float32(0.5), count=np.int32(7), on=np.bool_(True))
    row = read_metrics(log.path)[0]
    assert (row["step"], row["loss"], row["count"], row["on"]) == (3, 0.5, 7, True)


def test_resuming_drops_the_steps_that_will_be_done_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsLog(path)
    for step in range(5):
        first.write(step, try_=1)
    second = MetricsLog(path, resume_from=3)
    for step in range(3, 6):
        second.write(step, try_=2)
    assert [(row["step"], row["try_"]) for row in read_metrics(path)] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 2),
    ]


def test_a_fresh_log_forgets_the_run_before(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "m.jsonl").write(0, loss=1.0)
    assert read_metrics(MetricsLog(tmp_path / "m.jsonl").path) == []


def test_a_torn_line_is_ignored_at_every_cut_and_gone_after_resuming(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write(0, loss=12.5)
    log.write(1, loss=3.25)
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for cut in range(start, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert [row["step"] for row in read_metrics(path)] == [0]
        MetricsLog(path, resume_from=1).write(1, loss=3.5)
        assert [(row["step"], row["loss"]) for row in read_metrics(path)] == [(0, 12.5), (1, 3.5)]


def test_lines_that_are_no_rows_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'\x00\x00\xff\n12\n{"loss": 1}\n{"step": "x"}\n{"step": 4, "loss": 1}\n')
    assert read_metrics(path) == [{"step": 4, "loss": 1}]


def test_there_is_no_log_yet(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "absent.jsonl") == []


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match=r"metrics\.jsonl: the disk is full"):
        log.write(0, loss=1.0)
