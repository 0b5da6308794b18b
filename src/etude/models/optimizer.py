"""AdamW over fp32 master weights.

Invariant: the model's own parameters are always the master weights rounded to the model's dtype. What is published,
digested and computed with is the rounded copy; small steps add up in the master copy until a weight rounds differently.
For an fp32 model the two are the same memory and nothing is copied.
"""

from typing import Any

import torch
from torch import Tensor, nn


class MasterAdamW:
    """`accumulate` after each backward pass, then one `step`."""

    def __init__(self, model: nn.Module, betas: tuple[float, float], weight_decay: float) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.masters = [p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self.params]
        matrices = [m for m in self.masters if m.ndim >= 2]
        vectors = [m for m in self.masters if m.ndim < 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=1e-8, fused=True)

    @torch.no_grad()
    def accumulate(self) -> None:
        """Move the gradients of the last backward pass into fp32 sums. bf16 sums over micro-batches would lose bits."""
        for param, master in zip(self.params, self.masters, strict=True):
            if param is master or param.grad is None:
                continue
            if master.grad is None:
                master.grad = param.grad.float()
            else:
                master.grad += param.grad
            param.grad = None

    @torch.no_grad()
    def step(self, lr: float, clip: float) -> float:
        """One update with gradients clipped to a global norm of `clip`; returns the norm before clipping.

        A norm that is not finite leaves weights and moments as they were: one bad batch must not end a run.
        """
        for group in self.adamw.param_groups:
            group["lr"] = lr
        norm: Tensor = nn.utils.clip_grad_norm_(self.masters, clip)
        if torch.isfinite(norm):
            self.adamw.step()
            stale = [(p, m) for p, m in zip(self.params, self.masters, strict=True) if p is not m]
            if stale:
                torch._foreach_copy_([p for p, _ in stale], [m for _, m in stale])
        self.adamw.zero_grad(set_to_none=True)
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        """Moments and master weights, for a checkpoint."""
        return {"adamw": self.adamw.state_dict(), "masters": [m.detach() for m in self.masters]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`, model parameters included."""
        if len(state["masters"]) != len(self.masters):
            raise ValueError(
                f"optimizer: checkpoint has {len(state['masters'])} tensors, model has {len(self.masters)}"
            )
        for number, (master, saved) in enumerate(zip(self.masters, state["masters"], strict=True)):
            if master.shape != saved.shape:
                raise ValueError(
                    f"optimizer: tensor {number} is {list(saved.shape)} in the checkpoint, "
                    f"{list(master.shape)} in the model"
                )
        for master, param, saved in zip(self.masters, self.params, state["masters"], strict=True):
            master.copy_(saved)
            if param is not master:
                param.copy_(master)
        self.adamw.load_state_dict(state["adamw"])
