"""Duplicates: exact by hash, near by MinHash, confirmed by the true similarity.

Invariant: the first of equal documents is kept, in the order given. A document is called a near duplicate only when the
exact Jaccard similarity of its token shingles with an earlier kept one reaches the threshold; MinHash only proposes.
"""

import re
import zlib

import numpy as np
from blake3 import blake3
from datasketch import MinHash, MinHashLSH

from etude.corpus.document import Document, DropReason

_TOKEN = re.compile(r"\w+|[^\w\s]")
_WIDTH = 5  # tokens of a shingle
_PERMUTATIONS = 64
_BATCH = 4096  # shingles; their 64 hashes each stay in the second-level cache
# Proposals are checked, so a false one costs a set intersection and a missed one a duplicate. The bands that datasketch
# chooses by itself propose only 88 % of the pairs that are exactly 0.8 similar, even with its weights at (0.1, 0.9).
_RECALL = 0.999
_ODD = np.uint32(0x9E3779B1)  # 2**32 over the golden ratio


class Deduplicator:
    """Remembers the documents it let pass. Memory: about 4 bytes a shingle, roughly the size of the text."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._index = MinHashLSH(threshold, _PERMUTATIONS, params=banding(threshold))
        self._empty = MinHash(_PERMUTATIONS, hashfunc=int)  # its permutations are drawn once and shared by copies
        self._seen: set[bytes] = set()
        self._shingles: dict[str, np.ndarray] = {}
        self._tokens = _TokenHashes()

    def check(self, document: Document) -> DropReason | None:
        """None, and the document is remembered; or which kind of duplicate it is."""
        digest = blake3(" ".join(document.text.split()).encode("utf-8", "surrogatepass")).digest()
        if digest in self._seen:
            return DropReason.EXACT_DUPLICATE
        shingles = self._shingle(document.text)
        signature = self._sign(shingles)
        if any(jaccard(shingles, self._shingles[key]) >= self.threshold for key in self._index.query(signature)):
            return DropReason.NEAR_DUPLICATE
        self._seen.add(digest)
        key = str(len(self._shingles))
        self._shingles[key] = shingles
        self._index.insert(key, signature)
        return None

    def _shingle(self, text: str) -> np.ndarray:
        """Sorted, distinct 32-bit hashes of each run of five tokens; of all tokens where there are fewer."""
        tokens = _TOKEN.findall(text)
        hashes = np.fromiter(map(self._tokens.__getitem__, tokens), np.uint32, len(tokens))
        width = min(_WIDTH, len(hashes))
        runs = np.zeros(max(len(hashes) - width + 1, 1), np.uint32)
        for offset in range(width):
            runs = (runs ^ hashes[offset : offset + len(runs)]) * _ODD  # not a sum: the order of tokens matters
            runs ^= runs >> np.uint32(15)
        return np.unique(runs)

    def _sign(self, shingles: np.ndarray) -> MinHash:
        signature = self._empty.copy()
        for start in range(0, len(shingles), _BATCH):
            signature.update_batch(shingles[start : start + _BATCH].tolist())
        return signature


class _TokenHashes(dict[str, int]):
    """Each distinct token is hashed once; a corpus has twenty times fewer of them than tokens."""

    def __missing__(self, token: str) -> int:
        self[token] = value = zlib.crc32(token.encode("utf-8", "surrogatepass"))
        return value


def banding(threshold: float) -> tuple[int, int]:
    """(bands, rows a band): the most selective that proposes 99.9 % of the pairs whose similarity is the threshold.

    64 bands of one row where none does, which is below a threshold of 0.11.
    """
    for rows in range(_PERMUTATIONS // 2, 1, -1):
        bands = _PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands, rows
    return _PERMUTATIONS, 1


def jaccard(left: np.ndarray, right: np.ndarray) -> float:
    """Similarity of two arrays of distinct values: |both| / |either|."""
    both = len(np.intersect1d(left, right, assume_unique=True))
    return both / (len(left) + len(right) - both)
