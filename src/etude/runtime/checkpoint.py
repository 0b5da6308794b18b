"""The commit of an RL run: weights, optimizer, data cursor and chain head in one folder that appears at once.

Invariant: a checkpoint is whole or absent, and the newest whole one is where a run goes on; the two newest are kept.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from etude.models import weights_of
from etude.records import UserError, directory_atomic
from etude.rl import Trainer
from etude.weights import state_digest

KEPT = 2


def save_trainer(folder: Path, trainer: Trainer, reconciler: dict[str, Any]) -> Path:
    """Write `folder/step-NNNNNN`, then drop all but the newest two."""
    path = folder / f"step-{trainer.step:06d}"
    with directory_atomic(path) as temporary:
        trainer.save(temporary / "trainer.pt")
        state = {
            "step": trainer.step,
            "digest": state_digest(weights_of(trainer.model)).hex(),
            "reconciler": reconciler,
        }
        (temporary / "state.json").write_text(json.dumps(state))
    for old in _checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)
    return path


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint and its reconciler's state; None when there is none."""
    found = _checkpoints(folder)
    if not found:
        return None
    return found[-1], _state(found[-1])["reconciler"]


def load_trainer(path: Path, trainer: Trainer) -> None:
    """Restore a checkpoint and prove it: the digest of the restored weights must be the one that was saved."""
    trainer.load(path / "trainer.pt")
    saved = _state(path)
    digest = state_digest(weights_of(trainer.model)).hex()
    if digest != saved["digest"]:
        raise UserError(
            f"{path}: restored weights have digest {digest}, the checkpoint says {saved['digest']}; delete it"
        )


def _state(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((path / "state.json").read_text())
        return {key: state[key] for key in ("digest", "reconciler")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: broken checkpoint ({error}); delete this folder to go on from the one before"
        ) from None


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir()) if folder.exists() else []
