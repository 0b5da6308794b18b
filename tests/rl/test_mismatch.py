"""How far trainer and sampler are apart on the same weights."""

import numpy as np
import pytest

from etude.models import cast_model
from etude.rl import mismatch
from tests.inference.drive import ids
from tests.models.tiny import SHAPES, perturb, tiny
from tests.rl.play import rollout, sampled_segments

PROMPTS = [ids(4 + n, seed=n) for n in range(4)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("shape", SHAPES)
def test_zero_in_fp32_for_what_the_engine_sampled(shape: str, temperature: float) -> None:
    model = tiny(shape)
    group = [rollout(f"r{n}", [s]) for n, s in enumerate(sampled_segments(model, PROMPTS, 3, 0, temperature))]
    found = mismatch(model, group, temperature)
    assert found["k3_replay"] < 1e-10
    assert found["k3_live"] < 1e-10
    assert found["routes_differ"] == 0
    assert found["tokens"] == 4 * 3 * 4


@pytest.mark.parametrize("shape", SHAPES)
def test_in_bf16_replay_is_not_worse_than_routing_anew(shape: str) -> None:
    model = cast_model(tiny(shape), "bfloat16")
    prompts = [ids(10, seed=n) for n in range(24)]
    found = mismatch(model, [rollout(f"r{n}", [s]) for n, s in enumerate(sampled_segments(model, prompts, 3))], 1.0)
    assert 0 < found["k3_replay"] < found["k3_live"]
    assert found["k3_replay"] < 1e-2
    assert 0 < found["routes_differ"] < 0.2


def test_micro_batches_change_nothing() -> None:
    model = tiny()
    group = [rollout(f"r{n}", [s]) for n, s in enumerate(sampled_segments(model, PROMPTS))]
    perturb(model, scale=0.02)
    whole, cut = mismatch(model, group, 1.0), mismatch(model, group, 1.0, micro_tokens=20)
    assert whole["k3_replay"] > 1e-4
    assert cut == pytest.approx(whole, rel=1e-3)


def test_kind_routes_shifted_by_one_token_show_in_replay_only() -> None:
    """Worse than no replay at all: that is how a shift is found."""
    model = tiny()
    segments = sampled_segments(model, PROMPTS)
    live = mismatch(model, [rollout("r", segments)], 1.0)["k3_live"]
    for seg in segments:
        seg.routes_TLK[:-1] = np.roll(seg.routes_TLK[:-1], 1, axis=0)
    found = mismatch(model, [rollout("r", segments)], 1.0)
    assert found["k3_replay"] > 1e-2
    assert found["k3_live"] == pytest.approx(live, abs=1e-9)
    assert found["routes_differ"] > 0.3


def test_routes_that_differ_are_counted_over_known_rows() -> None:
    """One segment of 12 rows in 2 layers: one row changed in one layer, one row unknown, the last one never known."""
    model = tiny()
    (seg,) = sampled_segments(model, [ids(4)], turns=2)
    rows = len(seg) - 1
    used = set(seg.routes_TLK[-2, 1].tolist())
    seg.routes_TLK[-2, 1] = [expert for expert in range(6) if expert not in used][:2]
    seg.routes_TLK[-3] = -1
    found = mismatch(model, [rollout("r", [seg])], 1.0)
    assert found["routes_differ"] == pytest.approx(1 / (2 * (rows - 1)))


def test_order_within_a_set_is_no_difference() -> None:
    model = tiny()
    segments = sampled_segments(model, PROMPTS)
    for seg in segments:
        seg.routes_TLK[:] = seg.routes_TLK[..., ::-1].copy()
    assert mismatch(model, [rollout("r", segments)], 1.0)["routes_differ"] == 0


def test_a_dense_model_has_a_mismatch_and_no_routes() -> None:
    model = tiny(dense_layers=3)
    found = mismatch(model, [rollout("r", sampled_segments(model, PROMPTS))], 1.0)
    assert found["k3_replay"] == found["k3_live"] < 1e-10
    assert found["routes_differ"] == 0
