"""Models small enough to test with: both shapes, milliseconds a pass, weights large enough that routes differ."""

import torch
from transformers import PreTrainedModel

from etude.config.model import ModelConfig
from etude.models import build_model, use_threads

SHAPES = ("deepseek_v3", "qwen3_moe")
VOCAB = 96

use_threads(1)  # the tests share two cores with everything else


def config(shape: str, **changes: object) -> ModelConfig:
    """hidden 32; deepseek_v3: one dense and two MoE layers, qwen3_moe: three MoE layers; 6 experts, 2 used."""
    return ModelConfig(
        **{
            "shape": shape, "hidden_size": 32, "layers": 3, "dense_layers": 1, "heads": 2, "head_dim": 16,
            "kv_rank": 16, "experts": 6, "experts_per_token": 2, "expert_size": 16, "dense_size": 48,
            "max_positions": 128, "tie_embeddings": False, "init_std": 0.2, **changes,
        }
    )  # fmt: skip


def tiny(shape: str = "deepseek_v3", seed: int = 0, **changes: object) -> PreTrainedModel:
    """A model with weights of N(0, 0.2) and, where there is one, a correction bias that changes which experts win."""
    model = build_model(config(shape, **changes), VOCAB, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    return model.eval()


@torch.no_grad()
def perturb(model: PreTrainedModel, seed: int = 1, scale: float = 0.05) -> None:
    """Change every parameter in place, as an optimizer step would."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter += scale * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def some_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random token ids, int64."""
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))
