"""The canary proves that a model computes with the weights it holds."""

import copy

import numpy as np
import pytest
import torch

from etude.inference.local import canary_logprobs
from etude.inference.local.canary import LENGTH, canary_ids
from etude.models import cast_model, weights_of
from etude.weights import state_digest
from tests.inference.drive import ask, engine, ids, run
from tests.models.tiny import SHAPES, VOCAB, perturb, tiny


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_weights_give_equal_bits(shape: str) -> None:
    assert canary_logprobs(tiny(shape)) == canary_logprobs(tiny(shape))
    model = tiny(shape)
    run(engine(model), ask("a", ids(9)))
    assert canary_logprobs(model) == canary_logprobs(tiny(shape)), "serving left something behind"


@pytest.mark.parametrize("shape", SHAPES)
def test_by_value(shape: str) -> None:
    """The logprobs of one plain pass over the fixed prompt."""
    model = tiny(shape)
    prompt = torch.from_numpy(canary_ids(VOCAB)).long()
    with torch.no_grad():
        logp = model(prompt[None]).logits[0, :-1].double().log_softmax(-1)
    wanted = logp.gather(1, prompt[1:, None])[:, 0]
    np.testing.assert_allclose(canary_logprobs(model), wanted, rtol=0, atol=1e-5)
    assert len(canary_logprobs(model)) == LENGTH - 1


def test_the_prompt_is_the_same_everywhere_and_spread_over_the_vocabulary() -> None:
    assert canary_ids(96).tolist()[:6] == [(n * 2654435761) % 96 for n in range(1, 7)]
    assert canary_ids(2048).max() < 2048
    assert len(set(canary_ids(2048).tolist())) == LENGTH


@pytest.mark.parametrize("shape", SHAPES)
def test_one_changed_matrix_shows(shape: str) -> None:
    before = canary_logprobs(tiny(shape))
    for name, _ in tiny(shape).named_parameters():
        model = tiny(shape)
        with torch.no_grad():
            parameter = model.get_parameter(name)
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
        assert max(abs(a - b) for a, b in zip(before, canary_logprobs(model), strict=True)) > 1e-4, name


def test_an_optimizer_steps_worth_of_change_shows_in_bf16() -> None:
    model = cast_model(tiny(), "bfloat16")
    before = canary_logprobs(model)
    perturb(model, scale=0.01)
    assert max(abs(a - b) for a, b in zip(before, canary_logprobs(model), strict=True)) > 1e-3


def test_kind_weights_held_are_not_the_weights_computed_with() -> None:
    """A kernel that keeps a packed copy: new bits and a new digest in memory, the old answers."""
    model, updated = tiny(), tiny(seed=1)
    packed = copy.deepcopy(model.lm_head)
    model.lm_head.forward = packed.forward
    source = weights_of(updated)
    for name, tensor in weights_of(model).items():
        tensor.flat[:] = source[name].flat
    assert state_digest(weights_of(model)) == state_digest(weights_of(updated))
    gap = max(abs(a - b) for a, b in zip(canary_logprobs(model), canary_logprobs(updated), strict=True))
    assert gap > 0.1


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = tiny().train(training)
    state = copy.deepcopy(model.state_dict())
    canary_logprobs(model)
    assert model.training is training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
