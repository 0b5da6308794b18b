"""Cuts give the document back; rows give the documents back, boundaries and all."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.corpus.fim import FimOrder, draw_cut
from etude.corpus.pack import NO_DOCUMENT, PackedTokens, pack

PAD, EOD = 0, 1
documents_of = st.lists(st.lists(st.integers(2, 60_000), max_size=40).map(lambda ids: [*ids, EOD]), max_size=25)


@given(st.text(), st.text(max_size=8))
def test_prefix_middle_suffix_is_the_document_in_both_orders(text: str, key: str) -> None:
    cut = draw_cut(text, 1.0, key)
    assert cut is not None and cut.prefix + cut.middle + cut.suffix == text
    written = dict(cut.parts)
    assert written == {"<|fim_prefix|>": cut.prefix, "<|fim_suffix|>": cut.suffix, "<|fim_middle|>": cut.middle}
    first = "<|fim_prefix|>" if cut.order is FimOrder.PSM else "<|fim_suffix|>"
    assert (cut.parts[0][0], cut.parts[2][0]) == (first, "<|fim_middle|>")
    assert draw_cut(text, 1.0, key) == cut


def test_the_rate_is_kept_orders_are_even_and_cuts_fall_everywhere() -> None:
    text = "0123456789"
    cuts = [cut for index in range(4000) if (cut := draw_cut(text, 0.3, f"7/{index}")) is not None]
    assert 0.27 < len(cuts) / 4000 < 0.33
    assert 0.45 < sum(cut.order is FimOrder.PSM for cut in cuts) / len(cuts) < 0.55
    assert set(Counter(len(cut.prefix) for cut in cuts)) == set(range(11)) == {len(cut.suffix) for cut in cuts}
    assert all(draw_cut(text, 0.0, str(index)) is None for index in range(100))


def slow_pack(documents: list[list[int]], length: int) -> tuple[list[list[int]], list[list[int]]]:
    tokens = [(token, number) for number, document in enumerate(documents) for token in document]
    ids, docs = [], []
    for start in range(0, len(tokens), length):
        row = tokens[start : start + length]
        padding = length - len(row)
        ids.append([token for token, _ in row] + [PAD] * padding)
        docs.append([number - row[0][1] for _, number in row] + [NO_DOCUMENT] * padding)
    return ids, docs


@given(documents_of, st.integers(1, 50))
def test_rows_are_those_of_a_token_by_token_reference(documents: list[list[int]], length: int) -> None:
    packed = pack(documents, length, PAD)
    ids, docs = slow_pack(documents, length)
    assert packed.ids_NS.dtype == np.int32 and packed.doc_NS.dtype == np.int16
    assert packed.ids_NS.shape == packed.doc_NS.shape == (len(packed), length)
    assert packed.ids_NS.tolist() == ids and packed.doc_NS.tolist() == docs


def test_more_documents_than_can_be_numbered_are_refused() -> None:
    assert pack([[EOD]] * 32_768, 32_768, PAD).doc_NS.max() == 32_767
    with pytest.raises(ValueError, match="32769"):
        pack([[EOD]] * 32_769, 32_769, PAD)


def test_sizes_that_do_not_fit_raise_with_both() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3, 2\)"):
        PackedTokens(np.zeros((2, 3), np.int32), np.zeros((3, 2), np.int16))
    with pytest.raises(ValueError, match="document 1 of 2 is empty"):
        pack([[EOD], []], 4, PAD)
