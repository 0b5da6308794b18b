"""The control: reinforcement learning on rewards dealt out at random must not improve.

    python benchmarks/shuffled_rewards.py [--quick] [--run runs/quickstart] [--json FILE]

Starts from the model of a finished `make run`, trains with the same settings but shuffled rewards, and measures pass@1
on the same held-out katas. `--quick` does 4 small steps and 96 katas.
"""

import shutil
import sys
from pathlib import Path

from bars import Bar, arguments, finish

from etude.config import load_config
from etude.config.evaluate import CheckpointConfig
from etude.config.jobs import EvalJob, RLJob
from etude.evaluate import paired_difference
from etude.evaluate.job import evaluate_run
from etude.records import UserError
from etude.runtime import rl_stage


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="a finished quickstart")
    args = parser.parse_args()
    start = (args.run / "pretrain" / "sft").resolve()
    if not start.is_dir():
        raise UserError(f"{start}: no model to start from; run `make run` first")
    out = args.run.parent / f"{args.run.name}-shuffled{'-quick' if args.quick else ''}"
    shutil.rmtree(out, ignore_errors=True)
    small = ["rl.steps=4", "rl.groups_per_step=8", "rl.checkpoint_every=100"] if args.quick else []
    fixed = [f'run="{out}"', f'model="{start}"', "rl.shuffle_rewards=true"]
    rl_stage(load_config(RLJob, "examples/quickstart/rl.toml", [*fixed, *small]))

    job = load_config(EvalJob, "examples/quickstart/eval.toml", [f'run="{out}"'])
    checkpoints = [("before", "before RL", str(start)), ("shuffled", "after RL on shuffled rewards", "rl/model")]
    if (args.run / "rl" / "model").is_dir():
        checkpoints.append(("real", "after RL on real rewards", str((args.run / "rl" / "model").resolve())))
    chosen = [CheckpointConfig(name=name, label=label, folder=folder) for name, label, folder in checkpoints]
    evaluate = job.evaluate.model_copy(
        update={"checkpoints": tuple(chosen), "tasks": 96 if args.quick else job.evaluate.tasks}
    )
    results = evaluate_run(job.model_copy(update={"evaluate": evaluate}))
    change = paired_difference(results[0].per_task, results[1].per_task)
    rows = [
        {"model": r.label, "pass@1": r.pass_at_1.mean, "low": r.pass_at_1.low, "high": r.pass_at_1.high}
        for r in results
    ]
    bars = [Bar("shuffled_gain_low_end", change.low, "<=", 0.0), Bar("shuffled_gain", change.mean, "<=", 0.05)]
    return finish("pass@1 on held-out katas, 95 % intervals", rows, bars, args.json)


if __name__ == "__main__":
    sys.exit(main())
