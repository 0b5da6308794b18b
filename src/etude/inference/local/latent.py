"""Latent attention in absorbed form, for decoding.

`transformers` expands every cached latent into keys and values of all heads at each pass: at 256 sessions of 100 tokens
that is most of the work of a decode step. The up-projections of keys and values can be moved to the query and to the
output instead (DeepSeek-V2, arXiv 2405.04434, section 2.1.2), so that attention runs on the latents themselves:

    q_h . (W_k,h c) = (W_k,h^T q_h) . c          sum_s a_s (W_v,h c_s) = W_v,h (sum_s a_s c_s)

Invariant: the same function of the same weights as the module's own forward, up to rounding.

Shape legend: B rows, Q new tokens, S cached tokens, H heads, N width without position, P rotary width, R latent rank.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_interleave,
)


@contextlib.contextmanager
def absorbed(model: nn.Module) -> Iterator[None]:
    """Run the passes inside with absorbed latent attention; models without latent attention are left alone."""
    layers = [module for module in model.modules() if isinstance(module, DeepseekV3Attention)]
    for layer in layers:
        layer.forward = types.MethodType(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor,
    past_key_values: Any,
    **_: object,
) -> tuple[Tensor, None]:
    """Takes the place of `DeepseekV3Attention.forward` for passes with a cache and an additive mask [B, 1, Q, S]."""
    rows, new = hidden_states.shape[:2]
    queries = self.q_proj if self.q_lora_rank is None else lambda x: self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
    q_BHQD = queries(hidden_states).view(rows, new, -1, self.qk_head_dim).transpose(1, 2)
    q_BHQN, q_BHQP = q_BHQD.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
    latent_BQR, k_BQP = self.kv_a_proj_with_mqa(hidden_states).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
    rotate = apply_rotary_pos_emb_interleave if self.config.rope_interleave else apply_rotary_pos_emb
    q_BHQP, k_B1QP = rotate(q_BHQP, k_BQP[:, None], *position_embeddings)
    latent_B1SR, k_B1SP = past_key_values.update(self.kv_a_layernorm(latent_BQR)[:, None], k_B1QP, self.layer_idx)

    up_HDR = self.kv_b_proj.weight.view(-1, self.qk_nope_head_dim + self.v_head_dim, self.kv_lora_rank)
    up_key_HNR, up_value_HVR = up_HDR.split([self.qk_nope_head_dim, self.v_head_dim], dim=1)
    q_BHQR = _per_head(q_BHQN, up_key_HNR)
    # All heads share one latent key, so heads and queries form one batch-wise matrix product.
    q_flat = torch.cat((q_BHQR, q_BHQP), -1).flatten(1, 2)
    keys = torch.cat((latent_B1SR, k_B1SP), -1)[:, 0]
    scores = (torch.matmul(q_flat, keys.transpose(1, 2)) * self.scaling).view(rows, -1, new, keys.shape[1])
    weights = (scores.float() + attention_mask).softmax(-1).to(scores.dtype)
    mixed_BHQR = torch.matmul(weights.flatten(1, 2), latent_B1SR[:, 0]).view(rows, -1, new, self.kv_lora_rank)
    out_BHQV = _per_head(mixed_BHQR, up_value_HVR.transpose(1, 2))
    return self.o_proj(out_BHQV.transpose(1, 2).flatten(2)), None


def _per_head(states_BHQX: Tensor, weight_HXY: Tensor) -> Tensor:
    """[B, H, Q, X] times each head's [X, Y]: H products over all rows at once. Left to broadcasting it would be B * H
    tiny ones, which made a decode pass of 90 rows a quarter slower."""
    rows, heads, new, width = states_BHQX.shape
    flat_HNX = states_BHQX.transpose(0, 1).reshape(heads, rows * new, width)
    return torch.bmm(flat_HNX, weight_HXY).view(heads, rows, new, -1).transpose(0, 1)
