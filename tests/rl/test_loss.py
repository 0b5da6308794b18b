"""The loss by value against a slow loop, and its gradient by formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.rl import k3, policy_loss


def example(count: int = 7, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(scale: float) -> Tensor:
        return scale * torch.randn(count, generator=generator)

    logprobs = -draw(2.0).abs() - 0.1
    return {
        "logprobs_N": logprobs.requires_grad_(),
        "sampler_logprobs_N": logprobs.detach() + draw(0.8),
        "reference_logprobs_N": logprobs.detach() + draw(0.5),
        "advantages_N": draw(1.0),
    }


def slow(case: dict[str, Tensor], z: float, cap: float, beta: float) -> tuple[float, list[float]]:
    """Loss, and d loss / d logprob of each token."""
    total, gradient = 0.0, []
    for n in range(len(case["logprobs_N"])):
        logp, sampler = float(case["logprobs_N"][n].detach()), float(case["sampler_logprobs_N"][n])
        weight = min(math.exp(logp - sampler), cap)
        kl = logp - float(case["reference_logprobs_N"][n])
        coefficient = weight * (float(case["advantages_N"][n]) - beta * kl)
        total -= coefficient * logp / z
        gradient.append(-coefficient / z)
    return total, gradient


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 20),
    z=st.sampled_from([1.0, 7.0, 128.0]),
    cap=st.sampled_from([0.5, 1.0, 2.0, 100.0]),
    beta=st.sampled_from([0.0, 0.01, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_value_and_gradient_equal_a_slow_loop(seed: int, count: int, z: float, cap: float, beta: float) -> None:
    """The gradient is -(1/Z) sum w (A - beta kl) grad logp: importance weight and KL are constants in it."""
    case = example(count, seed)
    terms = policy_loss(**case, normaliser=z, importance_cap=cap, kl_beta=beta)
    value, gradient = slow(case, z, cap, beta)
    assert terms.loss.item() == pytest.approx(value, rel=1e-4, abs=1e-5)
    terms.loss.backward()
    torch.testing.assert_close(case["logprobs_N"].grad, torch.tensor(gradient), rtol=1e-4, atol=1e-6)


def test_without_reference_there_is_no_kl() -> None:
    case = example() | {"reference_logprobs_N": None}
    with_beta = policy_loss(**case, normaliser=1.0, importance_cap=2.0, kl_beta=9.0)
    without = policy_loss(**case, normaliser=1.0, importance_cap=2.0, kl_beta=0.0)
    assert with_beta.loss.item() == without.loss.item()
    assert with_beta.kl_N.tolist() == [0.0] * 7


def test_the_cap_bounds_weights_and_nothing_below_it() -> None:
    logprobs = torch.tensor([-1.0, -1.0, -1.0, -1.0], requires_grad=True)
    sampler = torch.tensor([-1.0, -1.5, -4.0, -0.5])
    terms = policy_loss(logprobs, sampler, None, torch.ones(4), 1.0, importance_cap=2.0, kl_beta=0.0)
    torch.testing.assert_close(terms.weights_N, torch.tensor([1.0, math.exp(0.5), 2.0, math.exp(-0.5)]))
    terms.loss.backward()
    torch.testing.assert_close(logprobs.grad, -terms.weights_N)


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    policy_loss(logprobs, logprobs.detach().clone(), None, torch.tensor([0.5, -0.5]), 4.0, 2.0, 0.0).loss.backward()
    assert logprobs.grad.tolist() == [-0.125, 0.125]


def test_kl_pulls_towards_the_reference_even_without_advantage() -> None:
    """In expectation: tokens likelier than under the reference are pushed down, the others up."""
    logprobs = torch.tensor([-1.0, -3.0], requires_grad=True)
    policy_loss(
        logprobs, logprobs.detach().clone(), torch.tensor([-2.0, -2.0]), torch.zeros(2), 1.0, 2.0, 0.1
    ).loss.backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([0.1, -0.1]))


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_kind_sampler_logprob_that_is_not_finite(bad: float) -> None:
    """NaN times a zero advantage is NaN; a floored -inf pins the weight at its cap. Neither passes silently."""
    case = example()
    case["sampler_logprobs_N"][[2, 5]] = bad
    case["advantages_N"][:] = 0
    with pytest.raises(ValueError, match="2 of 7 sampled tokens have no finite sampler logprob"):
        policy_loss(**case, normaliser=1.0, importance_cap=2.0, kl_beta=0.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sampler_logprobs_N", "7 logprobs but 6 sampler logprobs"),
        ("reference_logprobs_N", "7 logprobs but 6 reference logprobs"),
        ("advantages_N", "7 logprobs but 6 advantages"),
    ],
)
def test_other_lengths_are_refused_with_both_sizes(name: str, words: str) -> None:
    case = example()
    case[name] = case[name][:6]
    with pytest.raises(ValueError, match=words):
        policy_loss(**case, normaliser=1.0, importance_cap=2.0, kl_beta=0.1)


def test_one_value_is_not_spread_over_all() -> None:
    case = example()
    case["reference_logprobs_N"] = case["reference_logprobs_N"][:1]
    with pytest.raises(ValueError, match="7 logprobs but 1 reference logprobs"):
        policy_loss(**case, normaliser=1.0, importance_cap=2.0, kl_beta=0.1)


def test_k3_by_value() -> None:
    gaps = [0.0, 1e-6, -1e-6, 0.5, -0.5, 3.0, -20.0]
    sampler = torch.full((7,), -2.0, dtype=torch.float64)
    found = k3(sampler + torch.tensor(gaps, dtype=torch.float64), sampler)
    wanted = [0.0, 5e-13, 5e-13, *(math.exp(d) - 1 - d for d in gaps[3:])]
    assert found.tolist() == pytest.approx(wanted, rel=1e-3)
    assert (found >= 0).all()


def test_k3_is_the_kl_in_expectation() -> None:
    """Sum over mu of k3 equals KL(mu || pi), for any two distributions."""
    generator = torch.Generator().manual_seed(0)
    mu, pi = (torch.randn(9, generator=generator).double().log_softmax(-1) for _ in range(2))
    assert float((mu.exp() * k3(pi, mu)).sum()) == pytest.approx(float((mu.exp() * (mu - pi)).sum()))
