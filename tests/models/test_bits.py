"""The bits that are digested and published are the ones that compute, under the names of the checkpoint."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from etude.models import cast_model, save_model, weights_of
from etude.weights import state_digest
from tests.models.tiny import SHAPES, some_ids, tiny

UINT = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_names_and_bits_are_those_of_the_checkpoint(shape: str, tied: bool, dtype: str, tmp_path: Path) -> None:
    """Kinds: tied matrix sent twice, buffer forgotten (the correction bias is no parameter), fused names."""
    model = cast_model(tiny(shape, tie_embeddings=tied), dtype)
    save_model(model, tmp_path / "m")
    saved, weights = load_file(tmp_path / "m" / "model.safetensors"), weights_of(model)
    assert list(weights) == sorted(saved)
    assert any("experts.5.gate_proj" in name for name in weights)
    assert ("lm_head.weight" in weights) is not tied
    for name, tensor in saved.items():
        assert weights[name].dtype == str(tensor.dtype).removeprefix("torch.")
        assert np.array_equal(weights[name].bits, tensor.view(UINT[tensor.dtype]).numpy()), name


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_into_a_view_is_computed_with_next(shape: str) -> None:
    model, other = tiny(shape, seed=0), tiny(shape, seed=1)
    ids = some_ids(1, 12)
    with torch.no_grad():
        before, wanted = model(ids).logits, other(ids).logits
        source = weights_of(other)
        for name, tensor in weights_of(model).items():
            tensor.flat[:] = source[name].flat
        assert not torch.equal(before, wanted)
        assert torch.equal(model(ids).logits, wanted)


def test_one_element_of_each_tensor_reaches_the_model() -> None:
    """Every single view is live, not only most of them: the state dict is written through, name by name."""
    model = tiny("deepseek_v3")
    for name, tensor in weights_of(model).items():
        before = {key: value.clone() for key, value in model.state_dict().items()}
        tensor.flat[-1] ^= 1
        changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
        assert len(changed) == 1, name


def test_the_digest_follows_the_weights() -> None:
    model = tiny()
    weights = weights_of(model)
    before = state_digest(weights)
    with torch.no_grad():
        model.model.layers[1].mlp.experts.gate_up_proj[2, 3, 4] += 1
    assert state_digest(weights) != before
    assert state_digest(weights) == state_digest(weights_of(model))
