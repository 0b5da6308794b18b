"""Sampling that depends on the request alone, never on its neighbours in the batch."""

import torch
from torch import Tensor


def sample(logits_BV: Tensor, temperature_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token a row by inverting the cumulative distribution at `uniform_B` in [0, 1).

    Temperature 0 takes the most likely token. Returns (ids_B int64, logprobs_B fp32); the logprob is of the tempered
    distribution (of the untempered one where the temperature is 0).
    """
    greedy_B = temperature_B == 0
    scaled_BV = logits_BV.float() / torch.where(greedy_B, 1.0, temperature_B)[:, None]
    logprobs_BV = scaled_BV.log_softmax(-1)
    cumulative_BV = logprobs_BV.double().exp().cumsum(-1)
    # Rounding may leave the last entry a little off 1: scale the draw, so that no draw falls beyond the vocabulary.
    target_B1 = uniform_B.double()[:, None] * cumulative_BV[:, -1:]
    drawn_B = torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0].clamp_(max=logits_BV.shape[1] - 1)
    ids_B = torch.where(greedy_B, logprobs_BV.argmax(-1), drawn_B)
    return ids_B, logprobs_BV.gather(1, ids_B[:, None])[:, 0]
