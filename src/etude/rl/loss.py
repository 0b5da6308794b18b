"""The policy-gradient loss.

    L = -(1/Z) * sum over sampled tokens of  sg[ min(rho, cap) * (A - beta * (log pi - log pi_ref)) ] * log pi
    rho = exp(log pi - log mu),  mu the sampler,  sg = no gradient,  Z = rollouts * constant

* One advantage per rollout, summed over all its tokens and divided once by a constant: no per-row or per-token means.
* Truncated importance sampling (arXiv 2505.24298 and "TIS"): the weight corrects for older weights and for the
  sampler's numerics; the cap bounds variance and biases large ratios towards zero weight change.
* KL enters as the k1 estimator, log pi - log pi_ref, inside the coefficient (Composer 2 prefers k1 to k3, whose
  variance grows with the gap). Its expected gradient is that of KL(pi || pi_ref).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossTerms:
    """The loss (a sum already divided by Z) and per-token diagnostics, detached, length N."""

    loss: Tensor
    weights_N: Tensor
    kl_N: Tensor


def policy_loss(
    logprobs_N: Tensor,
    sampler_logprobs_N: Tensor,
    reference_logprobs_N: Tensor | None,
    advantages_N: Tensor,
    normaliser: float,
    importance_cap: float,
    kl_beta: float,
) -> LossTerms:
    """See the module docstring. Raises ValueError when lengths differ or a sampler logprob is missing."""
    others = {
        "sampler logprobs": sampler_logprobs_N,
        "reference logprobs": reference_logprobs_N,
        "advantages": advantages_N,
    }
    for name, other in others.items():
        if other is not None and other.shape != logprobs_N.shape:
            raise ValueError(f"loss: {len(logprobs_N)} logprobs but {len(other)} {name}")
    if not bool(torch.isfinite(sampler_logprobs_N).all()):
        # NaN times a zero mask is NaN, and a floored -inf pins the ratio at its cap: neither may pass silently.
        bad = int((~torch.isfinite(sampler_logprobs_N)).sum())
        raise ValueError(f"loss: {bad} of {len(sampler_logprobs_N)} sampled tokens have no finite sampler logprob")
    with torch.no_grad():
        weights_N = (logprobs_N - sampler_logprobs_N).exp().clamp(max=importance_cap)
        kl_N = torch.zeros_like(logprobs_N) if reference_logprobs_N is None else logprobs_N - reference_logprobs_N
        coefficients_N = weights_N * (advantages_N - kl_beta * kl_N)
    return LossTerms(-(coefficients_N * logprobs_N).sum() / normaliser, weights_N, kl_N)


def k3(logprobs_N: Tensor, sampler_logprobs_N: Tensor) -> Tensor:
    """Per-token k3 estimate of KL(sampler || trainer): e^d - 1 - d with d = log pi - log mu (Schulman, 2020)."""
    gap_N = (logprobs_N - sampler_logprobs_N).double()
    return gap_N.expm1() - gap_N
