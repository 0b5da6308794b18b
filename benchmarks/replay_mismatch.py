"""How far trainer and sampler are apart on equal weights, with router replay and without.

    python benchmarks/replay_mismatch.py [--quick] [--model runs/quickstart/rl/model] [--json FILE]

Samples held-out katas with the embedded engine (absorbed latent attention, cached, batched) and scores the same tokens
with the trainer's forward pass (plain attention, whole rows): equal bits of weights, other order of operations.
"""

import sys
from pathlib import Path

from bars import Bar, arguments, finish

from etude.config import load_config
from etude.config.jobs import EvalJob
from etude.evaluate.runner import evaluate_model
from etude.records import UserError


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", type=Path, default=Path("runs/quickstart/rl/model"))
    args = parser.parse_args()
    if not args.model.is_dir():
        raise UserError(f"{args.model}: no model here; run `make run` first or name one with --model")
    rows, found = [], {}
    for dtype in ("float32", "bfloat16"):
        overrides = [f"dtype={dtype}", f"evaluate.tasks={64 if args.quick else 512}"]
        job = load_config(EvalJob, "examples/quickstart/eval.toml", overrides)
        result, _ = evaluate_model(job, args.model, dtype, dtype, lambda share, note: None)
        found[dtype] = result.mismatch
        gaps = result.mismatch
        rows.append(
            {"dtype": dtype, "sampled tokens": int(gaps["tokens"]), "k3 with replay": gaps["k3_replay"],
             "k3 without": gaps["k3_live"], "routes that differ": gaps["routes_differ"]}
        )  # fmt: skip
    half = found["bfloat16"]
    bars = [
        Bar("k3_replay_bf16", half["k3_replay"], "<=", 1e-3),
        Bar("k3_replay_over_live_bf16", half["k3_replay"] / half["k3_live"], "<=", 1.0),
    ]
    return finish("trainer against sampler, mean k3 over sampled tokens", rows, bars, args.json)


if __name__ == "__main__":
    sys.exit(main())
