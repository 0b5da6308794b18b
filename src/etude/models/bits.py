"""A model's weights as bits, under the names of its checkpoint.

Invariant: the views share memory with the live parameters. What is digested is what computes, and what is scattered
into a view is computed with from the next forward pass on.
"""

import torch
from transformers import PreTrainedModel

from etude.weights import TensorBits

_UINT = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def weights_of(model: PreTrainedModel) -> dict[str, TensorBits]:
    """All parameters and saved buffers (the router's correction bias too) by canonical name, in sorted order.

    transformers keeps experts fused in memory ([E, 2I, H] and [E, H, I]); checkpoints, and so canonical names, have one
    matrix per expert. Tied matrices appear once.
    """
    named: dict[str, torch.Tensor] = {}
    saved = model.state_dict(keep_vars=True)
    unique = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    for name, tensor in saved.items():
        if name in unique:
            named.update(_split_experts(name, tensor.detach()))
    return {name: _bits(tensor) for name, tensor in sorted(named.items())}


def _split_experts(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    stem, _, leaf = name.rpartition(".")
    if leaf not in ("gate_up_proj", "down_proj") or tensor.ndim != 3:
        return {name: tensor}
    if leaf == "down_proj":
        return {f"{stem}.{e}.down_proj.weight": tensor[e] for e in range(len(tensor))}
    half = tensor.shape[1] // 2
    return {
        f"{stem}.{e}.{part}.weight": tensor[e, start : start + half]
        for e in range(len(tensor))
        for part, start in (("gate_proj", 0), ("up_proj", half))
    }


def _bits(tensor: torch.Tensor) -> TensorBits:
    assert tensor.is_contiguous(), "a view that is not contiguous cannot be scattered into"
    return TensorBits(str(tensor.dtype).removeprefix("torch."), tensor.view(_UINT[tensor.element_size()]).numpy())
