"""State of a phase on disk: one file, whole or absent."""

import io
from pathlib import Path

import torch
from transformers import PreTrainedModel

from etude.models import MasterAdamW
from etude.records import UserError, write_atomic


def save_state(path: Path, phase: str, step: int, model: PreTrainedModel, optimizer: MasterAdamW) -> None:
    """Weights, buffers, optimizer and position after `step` steps of `phase`."""
    buffer = io.BytesIO()
    state = {"phase": phase, "step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, buffer)
    write_atomic(path, buffer.getvalue())


def load_state(path: Path, phase: str, model: PreTrainedModel, optimizer: MasterAdamW) -> int:
    """Restore the state of `phase` and return its step; 0 when there is none for this phase.

    Raises UserError for a file that is not such a state.
    """
    if not path.exists():
        return 0
    try:
        state = torch.load(path, weights_only=True)
        if state["phase"] != phase:
            return 0
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])
    except Exception as error:  # torch, pickle and zip each have their own errors for a damaged file
        raise UserError(
            f"{path}: broken checkpoint ({type(error).__name__}); delete it to start the phase again"
        ) from error
