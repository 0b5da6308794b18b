"""Rows hold every segment once and whole, keep documents apart, and count what is to be learnt."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.corpus import PackedTokens
from etude.models import PADDING
from etude.pretrain.rows import Rows, corpus_rows, demonstration_rows, shuffled
from etude.records import Origin, PolicyVersion, Segment, UserError, VersionSpan

VERSION = PolicyVersion(-1, "0" * 32)


def segment(number: int, origins: list[Origin]) -> Segment:
    """Tokens that tell the segment and their place in it."""
    sampled = [at for at, origin in enumerate(origins) if origin is Origin.SAMPLED]
    count = len(origins)
    return Segment(
        ids_T=np.arange(count, dtype=np.int32) + 1000 * (number + 1),
        origin_T=np.array(origins, np.uint8),
        logprob_T=np.where(np.isin(np.arange(count), sampled), 0.0, np.nan).astype(np.float32),
        routes_TLK=np.full((count, 0, 0), -1, np.int16),
        spans=tuple(VersionSpan(at, at + 1, VERSION) for at in sampled),
    ).check()


LENGTH = 32
origins = st.lists(st.sampled_from(list(Origin)), min_size=1, max_size=LENGTH)
several = st.lists(origins, min_size=1, max_size=60)


def documents(rows: Rows) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, weights) of each document, as runs of equal numbers."""
    found = []
    for ids, doc, weights in zip(rows.ids_NS, rows.doc_NS, rows.weights_NS, strict=True):
        for number in dict.fromkeys(doc.tolist()):
            where = np.flatnonzero(doc == number)
            assert (np.diff(where) == 1).all()  # in one piece
            if number != PADDING:
                found.append((ids[where], weights[where]))
    return found


@given(several, st.sampled_from([0.0, 0.3, 1.0]))
def test_every_segment_is_in_one_row_whole_and_once(lists: list[list[Origin]], prompt_weight: float) -> None:
    segments = [segment(number, one) for number, one in enumerate(lists)]
    rows = demonstration_rows(segments, LENGTH, prompt_weight)
    assert (rows.ids_NS.dtype, rows.doc_NS.dtype, rows.weights_NS.dtype) == (np.int32, np.int16, np.float32)
    assert rows.ids_NS.shape == rows.doc_NS.shape == rows.weights_NS.shape == (len(rows), LENGTH)
    found = {int(ids[0]) // 1000 - 1: (ids, weights) for ids, weights in documents(rows)}
    assert len(documents(rows)) == len(segments) and found.keys() == set(range(len(segments)))
    for number, one in enumerate(segments):
        ids, weights = found[number]
        assert ids.tolist() == one.ids_T.tolist()
        expected = [1.0 if origin is Origin.SAMPLED else prompt_weight for origin in lists[number]]
        assert weights.tolist() == pytest.approx([0.0, *expected[1:]])  # nothing precedes the first token
    assert (rows.weights_NS[rows.doc_NS == PADDING] == 0).all()
    assert (rows.ids_NS[rows.doc_NS == PADDING] == 0).all()


def test_rows_of_demonstrations_are_well_filled() -> None:
    """Lengths as katas give them: 60 to 200 tokens in rows of 256."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(60, 200, 2000)
    plain = [segment(number, [Origin.PROMPT] * int(length)) for number, length in enumerate(lengths)]
    rows = demonstration_rows(plain, 256, 0.0)
    assert (rows.doc_NS != PADDING).mean() > 0.9


def test_a_demonstration_longer_than_a_row_is_refused_with_both_sizes() -> None:
    long = segment(0, [Origin.PROMPT] * (LENGTH + 1))
    with pytest.raises(UserError, match=r"33 tokens, a row holds 32; .*corpus\.sequence_length"):
        demonstration_rows([long], LENGTH, 0.0)
    whole = segment(0, [Origin.PROMPT] * LENGTH)
    assert len(demonstration_rows([whole], LENGTH, 0.0)) == 1


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_token_of_the_corpus_counts_but_the_first_of_a_document(lengths: list[list[int]]) -> None:
    width = 40
    doc = np.full((len(lengths), width), PADDING, np.int16)
    for row, sizes in enumerate(lengths):
        ends = list(itertools.accumulate(sizes))
        for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
            doc[row, end - size : end] = number
    rows = corpus_rows(PackedTokens(np.ones((len(lengths), width), np.int32), doc))
    for row, sizes in enumerate(lengths):
        expected = [float(at > 0) for size in sizes for at in range(size)]
        assert rows.weights_NS[row].tolist() == expected + [0.0] * (width - len(expected))


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 3))
def test_each_epoch_is_a_permutation(count: int, per_step: int, seed: int) -> None:
    if count < per_step:
        with pytest.raises(UserError, match=f"{count} rows are fewer than the {per_step} of one step"):
            next(shuffled(count, seed, per_step, 0))
        return
    steps = count // per_step
    order = shuffled(count, seed, per_step, 0)
    epochs = [np.concatenate([next(order) for _ in range(steps)]) for _ in range(3)]
    for epoch in epochs:
        assert len(epoch) == steps * per_step
        assert len(set(epoch.tolist())) == len(epoch) and set(epoch.tolist()) <= set(range(count))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {(seed, epoch): [] for seed in (0, 1) for epoch in (0, 1)}
    for seed in (0, 1):
        order = shuffled(20, seed, 5, 0)
        for epoch in (0, 1):
            orders[seed, epoch] = np.concatenate([next(order) for _ in range(4)]).tolist()
    assert len({tuple(one) for one in orders.values()}) == 4


@given(st.integers(4, 30), st.integers(1, 4), st.integers(0, 25))
def test_resuming_at_a_step_sees_what_would_have_come(count: int, per_step: int, start: int) -> None:
    whole = list(itertools.islice(shuffled(count, 3, per_step, 0), start + 6))
    resumed = list(itertools.islice(shuffled(count, 3, per_step, start), 6))
    assert [step.tolist() for step in resumed] == [step.tolist() for step in whole[start:]]
