"""Documents to rows of one length, with the boundaries kept.

Invariant: read row by row without the padding, the packed ids are the documents, one after the other, unchanged. A
document that does not end in its row goes on at the start of the next, as that row's document 0.

Shape legend: N rows, S tokens a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NO_DOCUMENT = -1  # in `doc_NS`, where there is padding


@dataclass(frozen=True)
class PackedTokens:
    """Rows for a trainer: a token may attend to those of the same document in its row, whose positions start at 0.

    ids_NS: int32 token ids. doc_NS: int16 running number of the token's document within the row, -1 is padding.
    """

    ids_NS: np.ndarray
    doc_NS: np.ndarray

    def __post_init__(self) -> None:
        if self.ids_NS.shape != self.doc_NS.shape or self.ids_NS.ndim != 2:
            raise ValueError(f"packed rows: ids have shape {self.ids_NS.shape}, documents {self.doc_NS.shape}")

    def __len__(self) -> int:
        return len(self.ids_NS)


def pack(documents: Sequence[Sequence[int] | np.ndarray], length: int, pad: int) -> PackedTokens:
    """Concatenate documents (each with its end marker) and cut into rows of `length`; only the last row is padded.

    Raises ValueError for an empty document, and when a row holds more than 32,767 documents, which int16 cannot number.
    """
    sizes = np.array([len(document) for document in documents], np.int64)
    if (sizes == 0).any():
        raise ValueError(
            f"document {int(np.argmin(sizes))} of {len(sizes)} is empty; it must at least have its end marker"
        )
    total = int(sizes.sum())
    rows = -(-total // length)
    ids = np.full(rows * length, pad, np.int32)
    doc = np.full(rows * length, NO_DOCUMENT, np.int64)
    if total:
        ids[:total] = np.concatenate([np.asarray(document, np.int32) for document in documents])
        doc[:total] = np.repeat(np.arange(len(documents)), sizes)
    doc_NS = doc.reshape(rows, length)
    within = np.where(doc_NS == NO_DOCUMENT, NO_DOCUMENT, doc_NS - doc_NS[:, :1])
    most = int(within.max(initial=0))
    if most > np.iinfo(np.int16).max:
        raise ValueError(f"a row of {length} tokens holds {most + 1} documents; at most 32768 can be numbered")
    return PackedTokens(ids.reshape(rows, length), within.astype(np.int16))
