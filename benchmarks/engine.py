"""The embedded engine beside `transformers`' own generation: tokens a second at 17M parameters, batch 32.

    python benchmarks/engine.py [--quick] [--json FILE]

Prompts of 128 tokens, 128 sampled (24 with --quick), temperature 1, prefill included, two threads, best of two runs
after a warm-up. `generate` gives neither logprobs nor routes here, the engine gives both.
"""

import sys
import time

import numpy as np
import torch
from bars import Bar, arguments, finish
from transformers import PreTrainedModel

from etude.config.inference import EngineConfig
from etude.config.model import ModelConfig
from etude.inference import Request
from etude.inference.local import LocalEngine
from etude.models import build_model, cast_model, use_threads, weights_of
from etude.records import PolicyVersion
from etude.weights import state_digest

VOCAB, BATCH, PROMPT = 8192, 32, 128
SIZES = {"hidden_size": 256, "layers": 4, "experts": 16, "experts_per_token": 4, "expert_size": 256, "kv_rank": 64}


def engine_rate(model: PreTrainedModel, prompts: np.ndarray, count: int) -> float:
    """Sampled tokens a second of the embedded engine."""
    version = PolicyVersion(0, state_digest(weights_of(model)).hex())
    best = 0.0
    for attempt in range(3):
        engine = LocalEngine(model, EngineConfig(slots=BATCH, context=PROMPT + count + 1), version)
        for number, prompt in enumerate(prompts):
            engine.submit(Request(str(number), prompt, count, stop_id=-1, seed=number))
        began = time.perf_counter()
        while engine.busy:
            engine.step()
        if attempt:
            best = max(best, engine.sampled_tokens / (time.perf_counter() - began))
    return best


@torch.inference_mode()
def generate_rate(model: PreTrainedModel, prompts: np.ndarray, count: int) -> float:
    """Sampled tokens a second of `model.generate` on one padded batch."""
    ids = torch.from_numpy(prompts).long()
    best = 0.0
    for attempt in range(3):
        began = time.perf_counter()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=count, min_new_tokens=count
        )
        if attempt:
            best = max(best, BATCH * count / (time.perf_counter() - began))
    return best


def main() -> int:
    args = arguments(__doc__).parse_args()
    use_threads(2)
    count = 24 if args.quick else 128
    prompts = np.random.default_rng(0).integers(20, VOCAB, (BATCH, PROMPT)).astype(np.int32)
    rows, rates = [], {}
    for shape in ("qwen3_moe", "deepseek_v3"):
        model = build_model(ModelConfig(shape=shape, **SIZES, tie_embeddings=False), VOCAB, seed=0).eval()
        millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        for dtype in ("float32", "bfloat16"):
            cast_model(model, dtype)
            ours, theirs = engine_rate(model, prompts, count), generate_rate(model, prompts, count)
            rates[shape, dtype] = ours
            rows.append(
                {"model": f"{shape} {millions:.1f}M", "dtype": dtype, "engine tok/s": round(ours),
                 "generate tok/s": round(theirs), "ratio": ours / theirs}
            )  # fmt: skip
    bars = [Bar(f"{shape}_tokens_per_s", max(rates[shape, d] for d in ("float32", "bfloat16")), ">=", 1500)
            for shape in ("qwen3_moe", "deepseek_v3")]  # fmt: skip
    return finish("embedded engine, batch 32, two threads", rows, bars, args.json)


if __name__ == "__main__":
    sys.exit(main())
