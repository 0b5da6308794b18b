"""The canary: a fixed prompt whose log-probabilities must come out as the trainer's.

A digest proves which bits are in memory; the canary proves that the forward pass uses them. vLLM's CPU build was seen
to reload equal weights, keep the same checksum and answer differently, because its kernels hold a packed copy.
"""

import numpy as np
import torch
from transformers import PreTrainedModel

from etude.inference.local.cache import SlotCache
from etude.inference.local.latent import absorbed

LENGTH = 32
PREFILL = 24


def canary_ids(vocab_size: int) -> np.ndarray:
    """The fixed prompt: int32 [32], spread over the vocabulary, equal for trainer and engine."""
    return (np.arange(1, LENGTH + 1, dtype=np.int64) * 2654435761 % vocab_size).astype(np.int32)


@torch.inference_mode()
def canary_logprobs(model: PreTrainedModel) -> tuple[float, ...]:
    """Log-probability of each canary token but the first, through the engine's own cached passes (one prefill of 24
    tokens, one continuation of 8). Equal weights in equal code give equal bits."""
    was_training = model.training
    model.eval()
    ids_1T = torch.from_numpy(canary_ids(model.config.vocab_size)).long()[None]
    cache = SlotCache(1, LENGTH)
    hidden = []
    for start, end in ((0, PREFILL), (PREFILL, LENGTH)):
        positions = torch.arange(start, end)[None]
        cache.aim(torch.zeros(1, dtype=torch.long), positions)
        visible = torch.arange(end)[None, None, :] <= positions[:, :, None]
        mask = torch.zeros(visible.shape, dtype=model.dtype)
        mask = mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)[:, None]
        with absorbed(model):
            part = model.model(
                input_ids=ids_1T[:, start:end], position_ids=positions, attention_mask=mask, past_key_values=cache
            )
        hidden.append(part.last_hidden_state)
    logprobs_TV = model.lm_head(torch.cat(hidden, 1)[0, :-1]).float().log_softmax(-1)
    model.train(was_training)
    return tuple(logprobs_TV.gather(1, ids_1T[0, 1:, None])[:, 0].tolist())
