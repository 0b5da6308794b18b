"""AdamW over fp32 masters: what is computed with is the master rounded, and no small step is lost."""

import copy

import pytest
import torch
from torch import nn

from etude.models import MasterAdamW, cast_model
from tests.models.tiny import some_ids, tiny

BETAS = (0.9, 0.95)


def loss(model: nn.Module, seed: int) -> torch.Tensor:
    return model(some_ids(2, 6, seed=seed)).logits.float().log_softmax(-1)[..., 3].mean()


def train(model: nn.Module, optimizer: MasterAdamW, seeds: range, lr: float = 1e-3) -> None:
    for seed in seeds:
        loss(model, seed).backward()
        optimizer.accumulate()
        optimizer.step(lr, clip=1e9)


def test_fp32_is_adamw_of_torch() -> None:
    model = tiny()
    other = copy.deepcopy(model)
    optimizer = MasterAdamW(model, BETAS, weight_decay=0.1)
    parameters = list(other.parameters())
    reference = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-3,
        betas=BETAS,
        eps=1e-8,
    )
    for seed in range(4):
        train(model, optimizer, range(seed, seed + 1))
        reference.zero_grad()
        loss(other, seed).backward()
        reference.step()
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, msg=name)
    assert all(master is parameter for master, parameter in zip(optimizer.masters, optimizer.params, strict=True))


def one_weight(dtype: torch.dtype) -> tuple[nn.Linear, MasterAdamW]:
    layer = nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    return layer, MasterAdamW(layer, BETAS, weight_decay=0.0)


def test_bf16_steps_too_small_to_see_add_up() -> None:
    """Below 1 bf16 steps by 1/256, and rounds at half of that: with lr 1e-4 plain bf16 AdamW never moves."""
    layer, optimizer = one_weight(torch.bfloat16)
    for step in range(40):
        layer.weight.grad = torch.ones_like(layer.weight)
        optimizer.accumulate()
        optimizer.step(1e-4, clip=1e9)
        assert layer.weight.item() == (1.0 if step < 19 else 1 - 1 / 256)
    assert optimizer.masters[0].item() == pytest.approx(1 - 40e-4, abs=1e-6)


def test_the_model_is_always_the_master_rounded() -> None:
    model = cast_model(tiny(), "bfloat16")
    optimizer = MasterAdamW(model, BETAS, weight_decay=0.1)
    train(model, optimizer, range(3))
    for parameter, master in zip(optimizer.params, optimizer.masters, strict=True):
        assert master.dtype == torch.float32
        assert torch.equal(parameter, master.to(torch.bfloat16))


def test_micro_batches_add_up_in_fp32() -> None:
    """1 + 2^-9 is 1 in bf16: the second of two micro-batches would be lost."""
    layer, optimizer = one_weight(torch.bfloat16)
    for value in (1.0, 2.0**-9):
        layer.weight.grad = torch.full_like(layer.weight, value)
        optimizer.accumulate()
        assert layer.weight.grad is None
    assert optimizer.masters[0].grad.item() == 1 + 2.0**-9
    assert optimizer.step(1e-4, clip=1e9) == 1 + 2.0**-9


def test_the_norm_is_clipped_and_returned() -> None:
    layer, optimizer = one_weight(torch.float32)
    layer.weight.grad = torch.full_like(layer.weight, 8.0)
    seen = []
    optimizer.adamw.register_step_pre_hook(lambda *_: seen.append(layer.weight.grad.item()))
    assert optimizer.step(1e-3, clip=2.0) == pytest.approx(8.0)
    assert seen[0] == pytest.approx(2.0, rel=1e-5)
    assert layer.weight.grad is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_that_is_not_finite_changes_nothing(dtype: str, bad: float) -> None:
    model = cast_model(tiny(), dtype)
    optimizer = MasterAdamW(model, BETAS, weight_decay=0.1)
    train(model, optimizer, range(1))
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    loss(model, 1).backward()
    optimizer.params[3].grad.view(-1)[0] = bad
    optimizer.accumulate()
    norm = optimizer.step(1e-3, clip=1.0)
    assert not torch.isfinite(torch.tensor(norm))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    now = optimizer.state_dict()
    for old, new in zip(state["masters"], now["masters"], strict=True):
        assert torch.equal(old, new)
    for key, old in state["adamw"]["state"].items():
        assert all(torch.equal(old[name], now["adamw"]["state"][key][name]) for name in old)
    assert all(master.grad is None for master in optimizer.masters), "the bad gradient must not reach the next step"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_optimizer_goes_on_bit_for_bit(dtype: str) -> None:
    model = cast_model(tiny(), dtype)
    optimizer = MasterAdamW(model, BETAS, weight_decay=0.1)
    train(model, optimizer, range(2), lr=1e-4)
    saved = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(2, 5), lr=1e-4)

    again = cast_model(tiny(seed=5), dtype)  # other weights: restoring must bring them all
    restored = MasterAdamW(again, BETAS, weight_decay=0.1)
    restored.load_state_dict(saved)
    buffers = {name: value for name, value in model.state_dict().items() if name.endswith("bias")}
    again.load_state_dict(buffers, strict=False)  # the correction bias has no gradient and is not the optimizer's
    train(again, restored, range(2, 5), lr=1e-4)
    for first, second in zip(optimizer.masters, restored.masters, strict=True):
        assert torch.equal(first, second)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_state_of_another_model_is_refused_with_both_sizes() -> None:
    optimizer = MasterAdamW(tiny(), BETAS, 0.0)
    state = optimizer.state_dict()
    count = len(state["masters"])
    with pytest.raises(ValueError, match=rf"has {count - 1} tensors, model has {count}"):
        optimizer.load_state_dict({**state, "masters": state["masters"][:-1]})
    before = [master.clone() for master in optimizer.masters]
    wrong = [*state["masters"][:-1], torch.zeros(1, 1)]  # copy_ would spread it over the whole matrix
    with pytest.raises(ValueError, match=rf"tensor {count - 1} is \[1, 1\] in the checkpoint, \["):
        optimizer.load_state_dict({**state, "masters": wrong})
    assert all(torch.equal(old, new) for old, new in zip(before, optimizer.masters, strict=True))
