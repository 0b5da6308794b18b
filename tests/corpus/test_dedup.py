"""Duplicates against a slow reference: all pairs, true Jaccard similarity of token shingles."""

import random
import re

import pytest

from etude.corpus.dedup import Deduplicator, banding, jaccard
from etude.corpus.document import Document, DropReason
from tests.corpus.trees import source


def shingles(text: str) -> set[tuple[str, ...]]:
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return {tuple(tokens[i : i + 5]) for i in range(max(1, len(tokens) - 4))}


def reference(texts: list[str], threshold: float) -> list[int]:
    """Numbers of the texts that are kept."""
    kept: list[int] = []
    for number, text in enumerate(texts):
        mine = shingles(text)
        if all(len(mine & (o := shingles(texts[k]))) < threshold * len(mine | o) for k in kept):
            kept.append(number)
    return kept


def edited(text: str, share: float, rng: random.Random) -> str:
    return "\n".join(
        line if rng.random() >= share else f"changed_{rng.randrange(10**6)}()" for line in text.split("\n")
    )


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_exactly_the_near_duplicates_are_dropped(threshold: float) -> None:
    rng = random.Random(0)
    texts = []
    for seed in range(12):
        original = source(seed, functions=12)
        texts += [original, *(edited(original, share, rng) for share in (0.02, 0.05, 0.1, 0.3))]
    rng.shuffle(texts)
    deduplicator = Deduplicator(threshold)
    reasons = [deduplicator.check(Document(f"{n}.py", text)) for n, text in enumerate(texts)]
    kept = reference(texts, threshold)
    assert len(kept) < len(texts)
    assert [n for n, reason in enumerate(reasons) if reason is None] == kept


def test_white_space_does_not_hide_an_exact_duplicate_and_the_first_is_kept() -> None:
    deduplicator = Deduplicator(0.8)
    assert deduplicator.check(Document("first.py", source(1))) is None
    spaced = source(1).replace("\n\n", "\n\n\n").replace("    ", "\t")
    assert deduplicator.check(Document("second.py", spaced)) is DropReason.EXACT_DUPLICATE
    assert deduplicator.check(Document("third.py", source(2))) is None


def test_the_order_of_tokens_matters() -> None:
    words = [f"word{n}" for n in range(200)]
    deduplicator = Deduplicator(0.5)
    assert deduplicator.check(Document("a", " ".join(words))) is None
    assert deduplicator.check(Document("b", " ".join(reversed(words)))) is None


@pytest.mark.parametrize("text", ["", "x", "x = 1", "\n\n"])
def test_texts_shorter_than_a_shingle_are_compared_too(text: str) -> None:
    deduplicator = Deduplicator(0.8)
    assert deduplicator.check(Document("a", text)) is None
    assert deduplicator.check(Document("b", text + " ")) is DropReason.EXACT_DUPLICATE
    assert deduplicator.check(Document("c", "entirely different")) is None


@pytest.mark.parametrize("threshold", [0.11, 0.3, 0.5, 0.8, 0.95, 1.0])
def test_bands_propose_nearly_all_pairs_at_the_threshold(threshold: float) -> None:
    bands, rows = banding(threshold)
    assert bands * rows <= 64
    assert 1 - (1 - threshold**rows) ** bands >= 0.999
    assert all(1 - (1 - threshold**more) ** (64 // more) < 0.999 for more in range(rows + 1, 33))


def test_jaccard_is_the_share_of_common_values() -> None:
    deduplicator = Deduplicator(0.8)
    left, right = (deduplicator._shingle(text) for text in ("a b c d e f", "a b c d e g"))
    assert jaccard(left, left) == 1.0
    assert jaccard(left, right) == 1 / 3
