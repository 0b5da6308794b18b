"""The corpus folder on disk: one Parquet file a split, the tokenizer, the manifest.

Invariant: what `load_shards` returns is what was packed, or it raises one UserError that says to build again. The
manifest is written last and names the BLAKE3 of everything else, so that half a folder never loads.

Shape legend: N rows, S tokens a row.
"""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from etude.corpus.document import Split
from etude.corpus.pack import PackedTokens
from etude.corpus.report import FORMAT, CorpusReport
from etude.records import UserError, write_atomic

MANIFEST = "manifest.json"
_AGAIN = "run `etude corpus build` to write it again"
_ROW_GROUP_TOKENS = 1 << 20


def shard_name(split: Split) -> str:
    """The file of a split below the corpus folder."""
    return f"{split.value}.parquet"


def write_shard(folder: Path, split: Split, packed: PackedTokens, vocab_size: int) -> None:
    """Write one split: `ids` as list<uint16> where the vocabulary allows, else list<int32>; `doc` as list<int16>."""
    rows, length = packed.ids_NS.shape
    kind = np.uint16 if vocab_size <= 1 << 16 else np.int32
    offsets = pa.array(np.arange(rows + 1, dtype=np.int64) * length, pa.int64())
    columns = {
        name: pa.LargeListArray.from_arrays(offsets, pa.array(values.reshape(-1)))
        for name, values in (("ids", packed.ids_NS.astype(kind)), ("doc", packed.doc_NS))
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd", row_group_size=max(1, _ROW_GROUP_TOKENS // length))
    write_atomic(folder / shard_name(split), sink.getvalue().to_pybytes())


def write_manifest(folder: Path, report: CorpusReport) -> None:
    """Write the last file of a folder."""
    write_atomic(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def hash_files(folder: Path) -> dict[str, str]:
    """BLAKE3 in hex of each file below the folder, manifest aside, by path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): _digest(path) for path in paths}


def read_manifest(folder: str | Path) -> CorpusReport:
    """The report of a corpus folder. Raises UserError when there is none, it is broken or of another version."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not folder.is_dir():
        raise UserError(f"{folder}: no corpus folder; {_AGAIN}")
    try:
        report = msgspec.json.decode(path.read_bytes(), type=CorpusReport)
    except FileNotFoundError:
        raise UserError(f"{path}: missing, so this is no whole corpus; {_AGAIN}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{path}: broken manifest ({error}); {_AGAIN}") from None
    if report.format != FORMAT:
        raise UserError(f"{path}: format {report.format}, this version reads {FORMAT}; {_AGAIN}")
    return report


def check_files(folder: str | Path, report: CorpusReport, names: list[str] | None = None) -> None:
    """Compare files (all by default) with the manifest. Raises UserError for the first that is missing or changed."""
    for name in report.files if names is None else names:
        path = Path(folder) / name
        try:
            actual = _digest(path)
        except OSError as error:
            raise UserError(f"{path}: cannot read this part of the corpus ({error.strerror}); {_AGAIN}") from None
        if actual != report.files.get(name):
            raise UserError(f"{path}: truncated or changed since the corpus was built; {_AGAIN}")


def load_shards(folder: str | Path, split: Split | str) -> PackedTokens:
    """Read one split, `train` or `held_out`: ids int32 [N, S] and documents int16 [N, S], both writable.

    Raises UserError for a missing folder, manifest or file, for a file that is not the one the manifest names, and for
    an unknown split.
    """
    if split not in list(Split):
        raise UserError(f"split {str(split)!r}: there are {' and '.join(Split)}")
    folder, name = Path(folder), shard_name(Split(split))
    report = read_manifest(folder)
    check_files(folder, report, [name])
    table = pq.read_table(folder / name)  # its bytes are the ones that were written: the hash says so
    shape = report.splits[str(split)].rows, report.sequence_length
    ids, doc = (table[column].combine_chunks().flatten().to_numpy().reshape(shape) for column in ("ids", "doc"))
    return PackedTokens(ids.astype(np.int32), doc.astype(np.int16))


def _digest(path: Path) -> str:
    return blake3(path.read_bytes()).hexdigest()
