"""Models from a config, and Hugging Face folders in and out.

Invariant: a model is a plain `transformers` module, so every checkpoint written here loads with `from_pretrained`, and
a folder becomes visible only when it is whole.
"""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, DeepseekV3Config, PreTrainedConfig, PreTrainedModel, Qwen3MoeConfig
from transformers.utils import logging as hf_logging

from etude.config.model import ModelConfig
from etude.records import UserError, directory_atomic

# transformers writes no router kind for DeepSeek-V3; engines that read config.json need both keys, or they drop the
# correction bias (vLLM dies with a KeyError on it).
_ROUTER_KEYS = {"deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}}

# grouped_mm runs forward and backward on CPU and is the fastest there; batched_mm gathers a weight copy for every
# (token, expert) pair and is never used.
_EXPERTS = "grouped_mm"


DType = Literal["bfloat16", "float32"]


def torch_dtype(name: DType) -> torch.dtype:
    """The type of weights and activations that a config names."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]


def use_threads(threads: int) -> None:
    """CPU threads of this process's torch. Two processes of one thread each beat one of two on two cores."""
    torch.set_num_threads(threads)


def build_model(config: ModelConfig, vocab_size: int, seed: int) -> PreTrainedModel:
    """A freshly initialised model in fp32 on the CPU; equal arguments give equal bits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shaped = _deepseek_v3(config, vocab_size) if config.shape == "deepseek_v3" else _qwen3_moe(config, vocab_size)
        shaped._experts_implementation = _EXPERTS
        return AutoModelForCausalLM.from_config(shaped)


def cast_model(model: PreTrainedModel, dtype: DType) -> PreTrainedModel:
    """Round parameters to `dtype`, in place. The router's correction bias stays in fp32: near 5, bf16 steps by 1/32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch_dtype(dtype))
    model.config.dtype = torch_dtype(dtype)
    return model


def save_model(model: PreTrainedModel, folder: str | Path, also: Callable[[Path], None] | None = None) -> None:
    """Write a Hugging Face folder, whole or not at all. `also` puts further files into it, such as the tokenizer."""
    hf_logging.disable_progress_bar()  # Étude has bars of its own
    with directory_atomic(folder) as temporary:
        try:
            model.save_pretrained(temporary)
        except SafetensorError as error:  # an error of the system, but without its number
            raise OSError(errno.ENOSPC if "os error 28" in str(error) else errno.EIO, str(error)) from error
        if also is not None:
            also(temporary)
        extra = _ROUTER_KEYS.get(model.config.model_type)
        if extra:
            path = temporary / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | extra, indent=2) + "\n")


def load_model(folder: str | Path, dtype: DType) -> PreTrainedModel:
    """Read a Hugging Face folder. Raises UserError that names the folder and what is wrong with it."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no model here (config.json is missing); run the stage that writes it first")
    hf_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch_dtype(dtype),
            output_loading_info=True,
            local_files_only=True,
            experts_implementation=_EXPERTS,
        )
    except Exception as error:  # safetensors, json and transformers each raise their own kinds for a broken file
        raise UserError(
            f"{folder}: broken checkpoint ({_first_line(error)}); delete it and run its stage again"
        ) from error
    model, info = loaded
    wrong = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
    if wrong:
        raise UserError(
            f"{folder}: checkpoint lacks {len(wrong)} tensors of its config, for example {sorted(wrong)[0]}"
        )
    return model


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _common(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """Keys that both shapes share."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.dense_size,
        "moe_intermediate_size": config.expert_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_experts_per_tok": config.experts_per_token,
        "max_position_embeddings": config.max_positions,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tie_embeddings,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
    }


def _deepseek_v3(config: ModelConfig, vocab_size: int) -> PreTrainedConfig:
    rope = config.head_dim // 2
    return DeepseekV3Config(
        **_common(config, vocab_size),
        architectures=["DeepseekV3ForCausalLM"],
        first_k_dense_replace=config.dense_layers,
        num_key_value_heads=config.heads,
        q_lora_rank=None,
        kv_lora_rank=config.kv_rank,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=config.head_dim - rope,
        v_head_dim=config.head_dim,
        n_routed_experts=config.experts,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=1.0,
        num_mtp_layers=0,
    )


def _qwen3_moe(config: ModelConfig, vocab_size: int) -> PreTrainedConfig:
    make: Any = Qwen3MoeConfig  # head_dim reaches it through its **kwargs
    return make(
        **_common(config, vocab_size),
        architectures=["Qwen3MoeForCausalLM"],
        num_key_value_heads=max(1, config.heads // 2),
        head_dim=config.head_dim,
        num_experts=config.experts,
        norm_topk_prob=True,
    )
