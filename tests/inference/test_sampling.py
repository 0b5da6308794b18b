"""One draw, one token, whatever the neighbours are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.inference.local.sampling import sample
from tests.inference.drive import inverse


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    vocab=st.integers(1, 40),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
)
@settings(max_examples=200, deadline=None)
def test_inverts_the_cumulative_distribution(
    seed: int, rows: int, vocab: int, scale: float, temperature: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(rows, vocab))).astype(np.float32)
    draws = rng.random(rows)
    ids, logprobs = sample(torch.from_numpy(logits), torch.full((rows,), temperature), torch.from_numpy(draws))
    for row in range(rows):
        scaled = torch.from_numpy(logits[row]) / (temperature or 1.0)
        logp = scaled.log_softmax(-1).double().numpy()
        total = np.exp(logp).sum()
        wanted = inverse(logp - np.log(total), draws[row]) if temperature else int(np.argmax(logits[row]))
        assert int(ids[row]) == wanted
        assert float(logprobs[row]) == pytest.approx(float(scaled.log_softmax(-1)[wanted]), abs=1e-6)


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval_are_tokens_that_can_be_drawn(draw: float) -> None:
    """The first and last tokens have probability 0 here: neither end of the interval may choose them."""
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    ids, logprobs = sample(logits, torch.ones(1), torch.tensor([draw], dtype=torch.float64))
    assert int(ids[0]) in (1, 2)
    assert torch.isfinite(logprobs).all()


def test_frequencies_follow_the_tempered_distribution() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    draws = torch.from_numpy((np.arange(10_000) + 0.5) / 10_000)
    ids, _ = sample(logits.repeat(10_000, 1), torch.full((10_000,), 0.7), draws)
    expected = (logits / 0.7).softmax(-1)
    torch.testing.assert_close(torch.bincount(ids, minlength=4) / 10_000, expected, rtol=0, atol=2e-4)
