"""Log-probabilities of given tokens: the one forward pass that pretraining, RL and evaluation share.

Invariant: the log-probability of a token depends on the tokens before it in its own document and on nothing else in the
batch (padding, neighbours in a packed row).

Shape legend: B rows, T tokens a row, V vocabulary.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

PADDING = -1


def packed_inputs(doc_BT: Tensor, dtype: torch.dtype, trunk_B: Tensor | None = None) -> dict[str, Tensor]:
    """Attention mask and positions of packed rows. `doc_BT`: number of the document of each token, -1 for padding.

    A token sees itself and earlier tokens of its own document; positions restart at each document. The mask is additive
    [B, 1, T, T]. A padding token sees itself, so that its (unused) softmax stays finite.

    trunk_B: the first so many tokens of a row are the common beginning of all its documents: each of them sees the
    trunk and takes its positions from the trunk's end on.
    """
    length = doc_BT.shape[1]
    index_T = torch.arange(length)
    same_BTT = doc_BT[:, :, None] == doc_BT[:, None, :]
    causal_TT = index_T[:, None] >= index_T[None, :]
    starts_BT = torch.ones_like(doc_BT, dtype=torch.bool)
    starts_BT[:, 1:] = doc_BT[:, 1:] != doc_BT[:, :-1]
    first_BT = torch.where(starts_BT, index_T, 0).cummax(dim=1).values
    position_BT = index_T - first_BT
    if trunk_B is not None:
        in_trunk_BT = index_T < trunk_B[:, None]
        same_BTT = same_BTT | in_trunk_BT[:, None, :]
        position_BT = torch.where(in_trunk_BT, position_BT, position_BT + trunk_B[:, None])
    allowed = (same_BTT & causal_TT)[:, None]
    mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)
    return {"attention_mask": mask, "position_ids": position_BT}


def next_token_logprobs(
    model: PreTrainedModel,
    ids_BT: Tensor,
    doc_BT: Tensor,
    wanted_BT: Tensor,
    temperature: float = 1.0,
    trunk_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of the wanted tokens given what precedes them.

    ids_BT: int64. doc_BT, trunk_B: see `packed_inputs`.
    wanted_BT: bool, which tokens to score; ValueError when one is the first of its document.
    temperature: the sampling temperature; log-probabilities are of the tempered distribution.
    Returns two fp32 tensors of length wanted_BT.sum(), in row-major order. Only the wanted positions pass through the
    output projection: at 2,048 entries it would cost as much as the rest of a small model.
    """
    starts_BT = torch.ones_like(wanted_BT)
    starts_BT[:, 1:] = doc_BT[:, 1:] != doc_BT[:, :-1]
    if wrong := int((wanted_BT & starts_BT).sum()):
        raise ValueError(f"{wrong} wanted tokens are the first of their document, so nothing before predicts them")
    context = packed_inputs(doc_BT, model.dtype, trunk_B)
    hidden_BTD = model.model(input_ids=ids_BT, use_cache=False, **context).last_hidden_state
    predicts_BT = torch.zeros_like(wanted_BT)
    predicts_BT[:, :-1] = wanted_BT[:, 1:]
    logits_NV = model.lm_head(hidden_BTD[predicts_BT]).float() / temperature
    logprobs_NV = logits_NV.log_softmax(-1)
    chosen_N = logprobs_NV.gather(1, ids_BT[wanted_BT][:, None])[:, 0]
    entropy_N = -(logprobs_NV.detach().exp() * logprobs_NV.detach()).sum(-1)
    return chosen_N, entropy_N
