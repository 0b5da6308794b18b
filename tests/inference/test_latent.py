"""Absorbed latent attention is the module's own attention, moved around."""

import pytest
import torch
from transformers import DynamicCache

from etude.inference.local.cache import SlotCache
from etude.inference.local.latent import absorbed
from tests.models.tiny import some_ids, tiny


def causal(queries: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    visible = torch.arange(length)[None, None, :] <= queries[:, :, None]
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


@pytest.mark.parametrize("q_rank", [None, 12])
@pytest.mark.parametrize("interleave", [True, False])
def test_absorbed_attention_equals_the_modules_own(interleave: bool, q_rank: int | None) -> None:
    """Both forms of the rotary part, with and without a low-rank query, as published checkpoints have them."""
    model = tiny()
    model.config.rope_interleave = interleave
    if q_rank is not None:
        config = model.config
        config.q_lora_rank = q_rank
        torch.manual_seed(0)
        model = type(model)(config).eval()
    ids = some_ids(3, 14)
    own, cache = DynamicCache(config=model.config), SlotCache(3, 20)
    with torch.no_grad():
        for start, end in ((0, 9), (9, 10), (10, 14)):
            positions = torch.arange(start, end)[None].expand(3, -1)
            wanted = model.model(ids[:, start:end], position_ids=positions, past_key_values=own).last_hidden_state
            cache.aim(torch.tensor([2, 0, 1]), positions)
            mask = causal(positions, end, torch.float32)
            with absorbed(model):
                found = model.model(
                    ids[:, start:end], position_ids=positions, attention_mask=mask, past_key_values=cache
                ).last_hidden_state
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_cache_holds_latents_not_heads() -> None:
    """What it is for: rank 16 + rotary 8 a token and layer, instead of 2 heads * (16 + 16)."""
    model, cache = tiny(), SlotCache(2, 8)
    positions = torch.arange(5)[None]
    cache.aim(torch.tensor([1]), positions)
    with absorbed(model), torch.no_grad():
        model.model(
            some_ids(1, 5), position_ids=positions, attention_mask=causal(positions, 5, torch.float32),
            past_key_values=cache,
        )  # fmt: skip
    assert [tuple(buffer.shape) for buffer in cache._layers[0]] == [
        (2, 8, 1, 16),
        (2, 8, 1, model.config.qk_rope_head_dim),
    ]


def test_the_module_is_itself_again_after_the_context() -> None:
    model, ids = tiny(), some_ids(1, 6)
    before = model(ids).logits
    with pytest.raises(RuntimeError, match="broke"), absorbed(model):
        raise RuntimeError("a pass broke")
    assert torch.equal(model(ids).logits, before)
    assert all("forward" not in vars(module) for module in model.modules())


def test_models_without_latent_attention_are_left_alone() -> None:
    model, ids = tiny("qwen3_moe"), some_ids(1, 6)
    before = model(ids).logits
    with absorbed(model):
        assert torch.equal(model(ids).logits, before)
