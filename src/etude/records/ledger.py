"""The account of every rollout: one Parquet file (zstd) a trainer step, one row a rollout.

Invariant: `read_ledger(write_ledger(...))` gives the entries back bit for bit (NaN logprobs with their payload, missing
routes as -1, empty shapes), and a file that is torn, foreign or holds an impossible segment raises one UserError that
names it. The columns are described in docs/records.md; every one can be asked for in SQL with `query`.

Shape legend: T tokens of one segment, L MoE layers, K experts per token.
"""

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etude.records.atomic import write_atomic
from etude.records.errors import UserError
from etude.records.rollout import Outcome, Rollout, Segment
from etude.records.version import PolicyVersion, VersionSpan


class Disposition(StrEnum):
    """What became of a rollout. Every rollout gets exactly one."""

    TRAINED = "trained"
    NO_GRADIENT = "no_gradient"  # all rewards of its group were equal, so its advantage is zero
    STALE = "stale"  # sampled by weights older than the bound
    INFRA = "infra"  # infrastructure failed; the task is tried again as a new attempt
    ABORTED = "aborted"  # stopped by us, e.g. at shutdown
    EVAL = "eval"  # measured, never trained


class LedgerEntry(msgspec.Struct, frozen=True):
    """A rollout and how it was settled.

    step: trainer step at which it was settled.
    advantage: what its sampled tokens were weighted by; None where none was computed.
    """

    rollout: Rollout
    step: int
    disposition: Disposition
    advantage: float | None = None


_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("step", pa.int64()), ("digest", pa.string())])
_SEGMENT = pa.struct(
    [
        ("ids", pa.list_(pa.int32())),
        ("origins", pa.list_(pa.uint8())),
        ("logprobs", pa.list_(pa.float32())),
        (
            "routes",
            pa.large_list(pa.int16()),
        ),  # T * L * K: at 60 layers of 8 experts 32-bit offsets end at 4.4 M tokens
        ("n_layers", pa.int32()),
        ("top_k", pa.int32()),
        ("spans", pa.list_(_SPAN)),
    ]
)
SCHEMA = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("group_id", pa.string()),
        ("task_id", pa.string()),
        ("tier", pa.int32()),
        ("attempt", pa.int32()),
        ("step", pa.int64()),
        ("disposition", pa.string()),
        ("advantage", pa.float64()),
        ("outcome", pa.string()),
        ("reward", pa.float64()),
        ("detail", pa.string()),
        ("seconds", pa.map_(pa.string(), pa.float64())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("n_segments", pa.int32()),  # this and the three below follow from `segments`, to spare questions long columns
        ("tokens", pa.int64()),
        ("sampled_tokens", pa.int64()),
        ("oldest_step", pa.int64()),
        ("segments", pa.list_(_SEGMENT)),
    ]
)
_FLOATS = ("segments.list.element.logprobs.list.element", "advantage", "reward", "seconds.key_value.value")
_ROW_GROUP = 64  # rollouts; bounds what a reader holds beside its result


def ledger_path(folder: str | Path, step: int) -> Path:
    """Where the ledger of trainer step `step` lies in `folder`; the names sort by step."""
    return Path(folder) / f"step-{step:06d}.parquet"


def ledger_files(folder: str | Path) -> list[Path]:
    """The ledger files of a folder, oldest step first; empty when there is none yet."""
    return sorted(Path(folder).glob("step-*.parquet"), key=lambda path: (len(path.name), path.name))


def write_ledger(path: str | Path, entries: Iterable[LedgerEntry]) -> None:
    """Write the entries of one step, whole or not at all. Raises ValueError for a segment that fails its check."""
    sink = pa.BufferOutputStream()
    encoded = [name for name in _leaves(SCHEMA) if name not in _FLOATS]
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        use_dictionary=encoded,  # never for floats: a dictionary holds one NaN and one zero, losing payload and sign
        write_page_checksum=True,
    ) as writer:
        for batch in _batched(entries, _ROW_GROUP):
            writer.write_table(_to_table(batch))
    write_atomic(path, sink.getvalue().to_pybytes())


def read_ledger(path: str | Path) -> list[LedgerEntry]:
    """All entries of one file, in order. Raises UserError when it is missing, torn or not a ledger."""
    path = Path(path)
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        if not file.schema_arrow.equals(SCHEMA):
            raise UserError(f"{path}: a Parquet file, but not a ledger of this version; see docs/records.md")
        return [entry for batch in file.iter_batches(_ROW_GROUP) for entry in _from_batch(batch)]
    except FileNotFoundError:
        raise UserError(f"{path}: no such ledger file") from None
    except UserError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:160]
        raise UserError(f"{path}: torn or damaged ledger file ({reason}); remove it or restore it") from None


def query(folder: str | Path, sql: str) -> list[dict[str, Any]]:
    """Ask the ledgers of a folder in DuckDB's SQL; the view `rollouts` has the columns of the files and `filename`.
    One dict a row of the answer.

    Raises UserError when the folder has no ledger, a file cannot be read or the SQL is wrong. Reads nothing else and
    writes nothing: the database is in memory and closed to all other files.
    """
    files = ledger_files(folder)
    if not files:
        raise UserError(f"{folder}: no ledger files (step-*.parquet) to ask")
    names = ", ".join("'" + str(file.resolve()).replace("'", "''") + "'" for file in files)
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
        try:
            connection.execute(f"SET allowed_paths = [{names}]")
            connection.execute("SET enable_external_access = false")
            connection.execute(f"CREATE VIEW rollouts AS SELECT * FROM read_parquet([{names}], filename = true)")
            answer = connection.execute(sql)
            columns = [column[0] for column in answer.description or ()]
            return [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]
        except duckdb.Error as error:
            raise UserError(f"{folder}: the ledgers cannot answer: {error}") from None


def _batched(entries: Iterable[LedgerEntry], size: int) -> Iterable[list[LedgerEntry]]:
    remaining = iter(entries)
    while batch := list(itertools.islice(remaining, size)):
        yield batch


def _leaves(schema: pa.Schema) -> list[str]:
    parquet = pq.ParquetFile(_empty(schema)).schema
    return [parquet.column(index).path for index in range(len(parquet))]


def _empty(schema: pa.Schema) -> pa.BufferReader:
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    return pa.BufferReader(sink.getvalue())


def _to_table(entries: Sequence[LedgerEntry]) -> pa.Table:
    rollouts = [entry.rollout for entry in entries]
    columns: dict[str, Any] = {
        name: [getattr(rollout, name) for rollout in rollouts]
        for name in ("rollout_id", "group_id", "task_id", "tier", "attempt", "reward", "detail", "sampled_tokens")
    }
    columns |= {
        "step": [entry.step for entry in entries],
        "disposition": [entry.disposition.value for entry in entries],
        "advantage": [entry.advantage for entry in entries],
        "outcome": [rollout.outcome.value for rollout in rollouts],
        "seconds": [list(rollout.seconds.items()) for rollout in rollouts],
        "counts": [list(rollout.counts.items()) for rollout in rollouts],
        "n_segments": [len(rollout.segments) for rollout in rollouts],
        "tokens": [sum(map(len, rollout.segments)) for rollout in rollouts],
        "oldest_step": [min((version.step for version in rollout.versions), default=None) for rollout in rollouts],
    }
    arrays = {name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}
    segments = [segment.check() for rollout in rollouts for segment in rollout.segments]
    offsets = _offsets(columns["n_segments"], "int32")
    arrays["segments"] = pa.ListArray.from_arrays(offsets, _segments_to_arrow(segments))
    return pa.table([arrays[field.name].cast(field.type) for field in SCHEMA], schema=SCHEMA)


def _segments_to_arrow(segments: Sequence[Segment]) -> pa.StructArray:
    """Numpy arrays become list columns by their offsets, without a Python object per token."""

    def flat(name: str, dtype: str) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *(getattr(segment, name).ravel() for segment in segments)])

    tokens = _offsets([len(segment) for segment in segments], "int32")
    routes = _offsets([segment.routes_TLK.size for segment in segments], "int64")
    spans = [
        [
            {"start": span.start, "end": span.end, "step": span.version.step, "digest": span.version.digest}
            for span in segment.spans
        ]
        for segment in segments
    ]
    children = [
        pa.ListArray.from_arrays(tokens, pa.array(flat("ids_T", "int32"))),
        pa.ListArray.from_arrays(tokens, pa.array(flat("origin_T", "uint8"))),
        pa.ListArray.from_arrays(tokens, pa.array(flat("logprob_T", "float32"))),
        pa.LargeListArray.from_arrays(routes, pa.array(flat("routes_TLK", "int16"))),
        pa.array([segment.routes_TLK.shape[1] for segment in segments], pa.int32()),
        pa.array([segment.routes_TLK.shape[2] for segment in segments], pa.int32()),
        pa.array(spans, pa.list_(_SPAN)),
    ]
    return pa.StructArray.from_arrays(children, fields=list(_SEGMENT))


def _offsets(lengths: Sequence[int], dtype: str) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype="int64")]).astype(dtype))


def _from_batch(batch: pa.RecordBatch) -> Iterable[LedgerEntry]:
    segments = batch.column("segments")
    plain = batch.drop_columns(["segments"]).to_pylist()
    for row, several in zip(plain, segments, strict=True):
        several = several.values  # a StructArray, one element a segment
        rollout = Rollout(
            segments=tuple(_segment_from_arrow(several, index) for index in range(len(several))),
            outcome=Outcome(row["outcome"]),
            seconds=dict(row["seconds"]),
            counts=dict(row["counts"]),
            **{
                name: row[name] for name in ("rollout_id", "group_id", "task_id", "tier", "attempt", "reward", "detail")
            },
        )
        yield LedgerEntry(rollout, row["step"], Disposition(row["disposition"]), row["advantage"])


def _segment_from_arrow(segments: pa.StructArray, index: int) -> Segment:
    def numpy(name: str) -> np.ndarray:
        return segments.field(name)[index].values.to_numpy(zero_copy_only=True).copy()

    ids_T, routes = numpy("ids"), numpy("routes")
    shape = (len(ids_T), segments.field("n_layers")[index].as_py(), segments.field("top_k")[index].as_py())
    if routes.size != np.prod(shape, dtype=np.int64):
        raise ValueError(
            f"routes {list(shape)} need {np.prod(shape, dtype=np.int64)} numbers but {routes.size} are stored"
        )
    spans = tuple(
        VersionSpan(span["start"], span["end"], PolicyVersion(span["step"], span["digest"]))
        for span in segments.field("spans")[index].as_py()
    )
    return Segment(ids_T, numpy("origins"), numpy("logprobs"), routes.reshape(shape), spans).check()
