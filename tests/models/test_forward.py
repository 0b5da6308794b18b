"""A token's log-probability depends on what precedes it in its own document, and on nothing else in the batch."""

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from etude.models import PADDING, RouterTap, next_token_logprobs, packed_inputs
from tests.models.tiny import SHAPES, some_ids, tiny

LENGTHS = (7, 1, 12, 4)


def slow(model: PreTrainedModel, ids: list[int], temperature: float = 1.0) -> tuple[list[float], list[float]]:
    """Log-probability and entropy of each token but the first, one plain pass for each prefix, in float64."""
    logprobs, entropies = [], []
    for t in range(1, len(ids)):
        with torch.no_grad():
            logits = model(torch.tensor([ids[:t]])).logits[0, -1].double() / temperature
        logp = logits.log_softmax(-1)
        logprobs.append(float(logp[ids[t]]))
        entropies.append(float(-(logp.exp() * logp).sum()))
    return logprobs, entropies


def packed(documents: list[Tensor], padding: int) -> tuple[Tensor, Tensor]:
    """One row: the documents, then padding."""
    ids = torch.cat([*documents, torch.full((padding,), 5)])
    doc = [number for number, document in enumerate(documents) for _ in document] + [PADDING] * padding
    return ids[None], torch.tensor([doc])


def all_but_first(doc_BT: Tensor) -> Tensor:
    wanted = torch.zeros_like(doc_BT, dtype=torch.bool)
    wanted[:, 1:] = (doc_BT[:, 1:] == doc_BT[:, :-1]) & (doc_BT[:, 1:] != PADDING)
    return wanted


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_packed_row_equals_separate_rows(shape: str, temperature: float) -> None:
    model = tiny(shape)
    documents = [some_ids(length, seed=length) for length in LENGTHS]
    ids, doc = packed(documents, padding=3)
    logprobs, entropies = next_token_logprobs(model, ids, doc, all_but_first(doc), temperature)
    alone = [slow(model, document.tolist(), temperature) for document in documents]
    torch.testing.assert_close(logprobs, torch.tensor([x for one in alone for x in one[0]]), rtol=0, atol=1e-5)
    torch.testing.assert_close(entropies, torch.tensor([x for one in alone for x in one[1]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_and_neighbours_change_nothing(shape: str) -> None:
    model, document = tiny(shape), some_ids(9, seed=3)
    reference = slow(model, document.tolist())[0]
    for before, after, padding in ((4, 0, 0), (0, 6, 0), (0, 0, 5), (11, 2, 7)):
        parts = [some_ids(before, seed=1), document, some_ids(after, seed=2)]
        ids, doc = packed(parts, padding)
        wanted = all_but_first(doc) & (doc == 1)
        found, _ = next_token_logprobs(model, ids.repeat(2, 1), doc.repeat(2, 1), wanted.repeat(2, 1))
        torch.testing.assert_close(found, torch.tensor(reference * 2), rtol=0, atol=1e-5)


def test_a_trunk_is_the_common_beginning_of_its_documents() -> None:
    model = tiny()
    trunk, branches = some_ids(6, seed=9), [some_ids(length, seed=length) for length in (3, 5)]
    ids, doc = packed([trunk, *branches], padding=2)
    wanted = all_but_first(doc) & (doc > 0)
    found, _ = next_token_logprobs(model, ids, doc, wanted, trunk_B=torch.tensor([6]))
    alone = [slow(model, torch.cat([trunk, branch]).tolist())[0][6:] for branch in branches]
    torch.testing.assert_close(found, torch.tensor([x for one in alone for x in one]), rtol=0, atol=1e-5)


def test_mask_and_positions_by_value() -> None:
    inputs = packed_inputs(torch.tensor([[0, 0, 1, -1, -1], [0, 1, 1, 1, -1]]), torch.float32)
    assert inputs["position_ids"].tolist() == [[0, 1, 0, 0, 1], [0, 0, 1, 2, 0]]
    visible = (inputs["attention_mask"] == 0)[:, 0].int().tolist()
    assert visible[0] == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert visible[1] == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 1]]
    assert inputs["attention_mask"].min() == torch.finfo(torch.float32).min


def test_only_wanted_tokens_are_scored_in_row_order() -> None:
    model, ids = tiny(), some_ids(2, 6)
    wanted = torch.zeros(2, 6, dtype=torch.bool)
    wanted[0, 4] = wanted[1, 1] = wanted[1, 5] = True
    found, _ = next_token_logprobs(model, ids, torch.zeros(2, 6, dtype=torch.long), wanted)
    rows = [slow(model, row.tolist())[0] for row in ids]
    torch.testing.assert_close(found, torch.tensor([rows[0][3], rows[1][0], rows[1][4]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", [0, 3])
def test_the_first_token_of_a_document_cannot_be_scored(position: int) -> None:
    """Kind: neighbour leak. The token before it belongs to another document."""
    wanted = torch.zeros(1, 6, dtype=torch.bool)
    wanted[0, position] = True
    with pytest.raises(ValueError, match="first of"):
        next_token_logprobs(tiny(), some_ids(1, 6), torch.tensor([[0, 0, 0, 1, 1, 1]]), wanted)


def test_gradient_flows_to_every_part_that_was_used() -> None:
    model, ids = tiny().train(), some_ids(2, 10)
    doc = torch.zeros(2, 10, dtype=torch.long)
    logprobs, entropies = next_token_logprobs(model, ids, doc, all_but_first(doc))
    assert not entropies.requires_grad
    logprobs.sum().backward()
    zero = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert zero == []


def test_kind_left_out_rows_follow_their_tokens() -> None:
    """Replay in a packed, padded row uses row b * T + t for token t of row b."""
    model = tiny()
    ids, doc = packed([some_ids(5, seed=1), some_ids(4, seed=2)], padding=3)
    with RouterTap(model).record() as alone_1, torch.no_grad():
        model(ids[:, :5])
    with RouterTap(model).record() as alone_2, torch.no_grad():
        model(ids[:, 5:9])
    with RouterTap(model).record() as together, torch.no_grad():
        next_token_logprobs(model, ids, doc, all_but_first(doc))
    for layer in range(2):
        assert torch.equal(together[layer][:5], alone_1[layer])
        assert torch.equal(together[layer][5:9], alone_2[layer])
