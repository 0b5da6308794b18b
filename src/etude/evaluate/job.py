"""`etude eval`: measure the checkpoints of a run that are there and not yet measured.

Invariant: `eval/NAME.json` exists only for a measurement that is complete, and names the digest of what was measured.
"""

from pathlib import Path

import msgspec

from etude.config import to_toml
from etude.config.evaluate import CheckpointConfig
from etude.config.jobs import EvalJob
from etude.evaluate.runner import EvalResult, evaluate_model
from etude.observe import progress
from etude.records import UserError, write_atomic
from etude.records.ledger import Disposition, LedgerEntry, write_ledger


def evaluate_run(job: EvalJob) -> list[EvalResult]:
    """Results of all checkpoints, in the order of the config. Raises UserError when there is not even one."""
    run = Path(job.run)
    out = run / "eval"
    found = [checkpoint for checkpoint in job.evaluate.checkpoints if (run / checkpoint.folder).is_dir()]
    if not found:
        wanted = ", ".join(str(run / checkpoint.folder) for checkpoint in job.evaluate.checkpoints)
        raise UserError(f"{run}: nothing to evaluate; expected one of {wanted}; run `etude pretrain` first")
    write_atomic(out / "config.toml", to_toml(job))
    return [_measured(job, checkpoint, run, out) for checkpoint in found]


def _measured(job: EvalJob, checkpoint: CheckpointConfig, run: Path, out: Path) -> EvalResult:
    """The stored result if there is one, else a new one."""
    name, label, folder = checkpoint.name, checkpoint.label, run / checkpoint.folder
    path = out / f"{name}.json"
    if path.exists():
        try:
            return msgspec.json.decode(path.read_bytes(), type=EvalResult)
        except msgspec.MsgspecError as error:
            raise UserError(f"{path}: not a result ({error}); delete it to measure again") from None
    with progress(f"eval: {label}", 1.0) as update:
        result, rollouts = evaluate_model(job, folder, name, label, update)
        mean = result.pass_at_1
        update(1.0, f"pass@1 {mean.mean:.1%} ({mean.low:.1%} to {mean.high:.1%}) on {result.tasks} held-out tasks")
    write_ledger(out / f"{name}.parquet", [LedgerEntry(r, 0, Disposition.EVAL) for r in rollouts])
    write_atomic(path, msgspec.json.format(msgspec.json.encode(result), indent=1))
    return result
