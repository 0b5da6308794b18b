"""One update: what it learns, what it does not depend on, what it measures."""

import copy
import math
import random
import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import etude.rl.batch as batch_module
from etude.config.rl import RLConfig
from etude.models import RouterTap, cast_model, next_token_logprobs
from etude.records import MISSING_ROUTE, Rollout, Segment, UserError
from etude.rl import Trainer
from tests.inference.drive import ids
from tests.models.tiny import SHAPES, perturb, tiny
from tests.rl.play import rollout, sampled_segments, segment

ROOT = Path(__file__).parents[2]


def config(**changes: object) -> RLConfig:
    return RLConfig(**{"lr": 1e-3, "warmup_steps": 0, "kl_beta": 0.0, "shadow_every": 0, "clip_grad": 1e9, **changes})


def batch(layers: int = 2, step: int = 0) -> tuple[list[Rollout], dict[str, float]]:
    """Two groups of made-up rollouts of one to three segments."""
    rng = np.random.default_rng(1)
    made, advantages = [], {}
    for group in range(2):
        prompt = ids(5 + group, seed=group)
        for member in range(3):
            parts = ["p" * len(prompt) + "ssoss"] + ["p" * len(prompt) + "ccss"] * member
            segments = [segment(one, rng, prompt, step, layers) for one in parts]
            made.append(rollout(f"{group}{member}", segments, group=f"g{group}"))
            advantages[f"{group}{member}"] = float(rng.normal())
    return made, advantages


def gradient(
    model: PreTrainedModel, rollouts: list[Rollout], advantages: dict[str, float], **changes: object
) -> dict[str, Tensor]:
    """What one step adds up, by parameter, before clipping."""
    model = copy.deepcopy(model)
    trainer = Trainer(model, config(**changes))
    found: dict[str, Tensor] = {}

    def keep(lr: float, clip: float) -> float:
        found.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        return 0.0

    with patch.object(trainer.optimizer, "step", keep):
        trainer.train(rollouts, advantages)
    return found


def same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    """Equal gradients up to `tolerance` of the largest element."""
    assert first.keys() == second.keys()
    scale = max(float(value.abs().max()) for value in first.values())
    assert scale > 1e-4
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=tolerance * max(1.0, scale), msg=name)


def slow_gradient(
    model: PreTrainedModel, rollouts: list[Rollout], advantages: dict[str, float], settings: RLConfig
) -> dict[str, Tensor]:
    """Each segment alone in a pass under its own routes, each token in a loop."""
    model = copy.deepcopy(model)
    tap = RouterTap(model)
    for one in rollouts:
        for seg in one.segments:
            with tap.replay(torch.from_numpy(seg.routes_TLK)):
                logp_TV = model(torch.from_numpy(seg.ids_T).long()[None]).logits[0].log_softmax(-1)
            for t in np.flatnonzero(seg.sampled_T):
                logp = logp_TV[t - 1, int(seg.ids_T[t])]
                weight = min(math.exp(float(logp.detach()) - float(seg.logprob_T[t])), settings.importance_cap)
                scale = len(rollouts) * settings.tokens_per_rollout
                (-weight * advantages[one.rollout_id] * logp / scale).backward(retain_graph=True)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_equals_a_loop_over_tokens(shape: str) -> None:
    """Kinds: mean of means, row is a rollout, routes shifted, advantage of another row: all of them change this."""
    model = tiny(shape)
    rollouts, advantages = batch(RouterTap(model).n_layers)
    same(gradient(model, rollouts, advantages), slow_gradient(model, rollouts, advantages, config()))


@pytest.mark.parametrize("micro_tokens", [1, 30, 70])
def test_kind_mean_of_means_over_micro_batches(micro_tokens: int) -> None:
    rollouts, advantages = batch()
    whole = gradient(tiny(), rollouts, advantages, micro_tokens=10_000)
    same(gradient(tiny(), rollouts, advantages, micro_tokens=micro_tokens), whole)


def test_the_order_of_rollouts_does_not_matter() -> None:
    rollouts, advantages = batch()
    shuffled = rollouts[:]
    random.Random(0).shuffle(shuffled)
    same(gradient(tiny(), rollouts, advantages), gradient(tiny(), shuffled, advantages))


def test_sharing_a_prompt_changes_no_gradient() -> None:
    rollouts, advantages = batch()
    shared = gradient(tiny(), rollouts, advantages)
    with patch.object(batch_module, "ROW_TOKENS", 1):
        same(gradient(tiny(), rollouts, advantages), shared)


def test_a_rollout_of_k_segments_is_the_sum_of_its_segments() -> None:
    """One advantage over the chain, no mean over its rows."""
    rng = np.random.default_rng(2)
    parts = [segment(one, rng) for one in ("ppppsss", "ppccss", "pppccsosss")]
    whole = gradient(tiny(), [rollout("r", parts)], {"r": 0.7})
    alone = [gradient(tiny(), [rollout("r", [part])], {"r": 0.7}) for part in parts]
    same(whole, {name: sum(one[name] for one in alone) for name in whole})


def test_the_loss_is_divided_by_rollouts_and_a_constant_never_by_tokens() -> None:
    long, short = (segment("pp" + "s" * n, np.random.default_rng(n)) for n in (9, 1))
    together = gradient(tiny(), [rollout("a", [long]), rollout("b", [short])], {"a": 1.0, "b": -1.0})
    a, b = gradient(tiny(), [rollout("a", [long])], {"a": 1.0}), gradient(tiny(), [rollout("b", [short])], {"b": -1.0})
    same(together, {name: (a[name] + b[name]) / 2 for name in a})
    halved = gradient(tiny(), [rollout("a", [long])], {"a": 1.0}, tokens_per_rollout=32)
    same(halved, {name: value / 2 for name, value in a.items()})


def total_logprob(model: PreTrainedModel, seg: Segment) -> float:
    ids_1T = torch.from_numpy(seg.ids_T).long()[None]
    with torch.no_grad(), RouterTap(model).replay(torch.from_numpy(seg.routes_TLK)):
        found, _ = next_token_logprobs(model, ids_1T, torch.zeros_like(ids_1T), torch.from_numpy(seg.sampled_T)[None])
    return float(found.sum())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_makes_good_rollouts_likelier_and_bad_ones_less_likely(shape: str, dtype: str) -> None:
    model = cast_model(tiny(shape), dtype)
    segments = sampled_segments(model, [ids(6)] * 4)
    rewards = [1.0, 0.0, 0.0, 1.0]
    before = [total_logprob(model, seg) for seg in segments]
    trainer = Trainer(model, config(lr=3e-3))
    group = [rollout(f"r{n}", [seg], reward) for n, (seg, reward) in enumerate(zip(segments, rewards, strict=True))]
    trainer.train(group, {f"r{n}": reward - 0.5 for n, reward in enumerate(rewards)})
    for seg, reward, old in zip(segments, rewards, before, strict=True):
        assert (total_logprob(model, seg) > old) == (reward == 1.0)


def test_no_advantage_no_step() -> None:
    model = tiny()
    before = copy.deepcopy(model.state_dict())
    rollouts, advantages = batch()
    metrics = Trainer(model, config()).train(rollouts, dict.fromkeys(advantages, 0.0))
    assert metrics["grad_norm"] == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_kind_correction_bias_updated_under_replay() -> None:
    """In RL the bias is frozen: the load under replay is the sampler's."""
    model = tiny()
    before = [router.e_score_correction_bias.clone() for router in RouterTap(model).routers]
    Trainer(model, config(lr=1e-2)).train(*batch())
    after = [router.e_score_correction_bias for router in RouterTap(model).routers]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_kind_a_forward_only_pass_disturbs_replay() -> None:
    """The shadow pass without replay, and the reference's pass, leave the step as it is."""
    plain = gradient(tiny(), *batch())
    same(gradient(tiny(), *batch(), shadow_every=1), plain, tolerance=0.0)
    same(gradient(tiny(), *batch(), kl_beta=1e-30), plain)


def test_kind_reference_model_is_replayed() -> None:
    """The reference routes for itself: the sampler's experts are not its own."""
    model = tiny()
    rollouts, advantages = batch()
    metrics = Trainer(model, config(kl_beta=0.1, lr=0.0)).train(rollouts, advantages)
    gaps = []
    for seg in (seg for one in rollouts for seg in one.segments):
        ids_1T = torch.from_numpy(seg.ids_T).long()[None]
        inputs = (ids_1T, torch.zeros_like(ids_1T), torch.from_numpy(seg.sampled_T)[None])
        with torch.no_grad():
            live, _ = next_token_logprobs(model, *inputs)
            with RouterTap(model).replay(torch.from_numpy(seg.routes_TLK)):
                replayed, _ = next_token_logprobs(model, *inputs)
        gaps += (replayed - live).tolist()
    assert metrics["kl_k1"] == pytest.approx(np.mean(gaps), abs=1e-5)
    assert abs(metrics["kl_k1"]) > 1e-3


def test_the_reference_stays_while_the_policy_moves() -> None:
    trainer = Trainer(tiny(), config(kl_beta=0.1, lr=1e-2))
    before = copy.deepcopy(trainer.reference.state_dict())
    segments = sampled_segments(tiny(), [ids(6)] * 2)
    group = [rollout(f"r{n}", [seg]) for n, seg in enumerate(segments)]
    first = trainer.train(group, {"r0": 0.5, "r1": -0.5})
    second = trainer.train(group, {"r0": 0.5, "r1": -0.5})
    assert first["kl_k1"] == pytest.approx(0, abs=1e-6)
    assert abs(second["kl_k1"]) > 1e-4
    assert all(torch.equal(value, before[name]) for name, value in trainer.reference.state_dict().items())


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_kind_sampler_logprob_that_is_not_finite_stops_the_step(bad: float) -> None:
    model = tiny()
    before = copy.deepcopy(model.state_dict())
    rollouts, advantages = batch()
    seg = rollouts[0].segments[0]
    seg.logprob_T[np.flatnonzero(seg.sampled_T)[0]] = bad
    with pytest.raises(ValueError, match="no finite sampler logprob"):
        Trainer(model, config()).train(rollouts, advantages)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_batch_with_exploding_gradients_changes_nothing() -> None:
    model = tiny()
    before = copy.deepcopy(model.state_dict())
    rollouts, advantages = batch()
    metrics = Trainer(model, config()).train(rollouts, {**advantages, "00": math.inf})
    assert not math.isfinite(metrics["grad_norm"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_coverage_counts_missing_rows() -> None:
    """Kind: fallback counted nowhere. 5 segments' last rows are not needed; three others are missing."""
    rng = np.random.default_rng(0)
    segments = [segment("ppsss", rng) for _ in range(5)]
    segments[0].routes_TLK[1] = MISSING_ROUTE
    segments[0].routes_TLK[3, 1, 0] = MISSING_ROUTE
    segments[4].routes_TLK[0, 0] = MISSING_ROUTE
    metrics = Trainer(tiny(), config()).train([rollout("r", segments)], {"r": 1.0})
    assert metrics["coverage"] == pytest.approx(17 / 20)
    full = Trainer(tiny(), config()).train([rollout("r", segments[1:4])], {"r": 1.0})
    assert full["coverage"] == 1.0


def test_metrics_of_rollouts_that_these_weights_sampled() -> None:
    model = tiny()
    segments = sampled_segments(model, [ids(6, seed=n) for n in range(3)])
    metrics = Trainer(model, config(shadow_every=1)).train(
        [rollout(f"r{n}", [seg]) for n, seg in enumerate(segments)], {f"r{n}": 1.0 for n in range(3)}
    )
    assert metrics["k3_replay"] < 1e-10
    assert metrics["k3_live"] < 1e-10
    assert metrics["logp_gap_p99"] < 1e-5
    assert metrics["tokens_trained"] == sum(int(seg.sampled_T.sum()) for seg in segments) == 24
    assert metrics["coverage"] == 1.0
    assert (metrics["staleness_mean"], metrics["staleness_max"]) == (0.0, 0.0)
    mean = np.concatenate([seg.logprob_T[seg.sampled_T] for seg in segments]).mean()
    # the loss is -sum(weight * advantage * logp) / (rollouts * 16), all weights 1
    assert metrics["loss"] == pytest.approx(-mean * 24 / (3 * 16), rel=1e-4)
    assert math.isnan(metrics["kl_k1"]), "there is no reference model: missing is not zero"
    assert 0 < metrics["entropy"] < math.log(96)


def test_mismatch_is_measured_only_on_tokens_of_these_weights() -> None:
    """Older tokens differ by what was learnt since: that is staleness, not numerics."""
    model = tiny()
    old = rollout("old", sampled_segments(model, [ids(6)], step=0))
    perturb(model, scale=0.02)
    new = rollout("new", sampled_segments(model, [ids(7, seed=1)], step=2))
    trainer = Trainer(model, config(shadow_every=1))
    trainer.step = 2
    metrics = trainer.train([old, new], {"old": 1.0, "new": 1.0})
    assert metrics["k3_replay"] < 1e-10
    assert metrics["k3_with_staleness"] > 1e-5
    assert (metrics["staleness_mean"], metrics["staleness_max"]) == (1.0, 2.0)
    trainer.step = 5
    later = trainer.train([old, new], {"old": 1.0, "new": 1.0})
    assert all(math.isnan(later[name]) for name in ("k3_replay", "k3_live", "logp_gap_p99"))


def test_ratio_clipped_is_the_share_of_weights_at_the_cap() -> None:
    model = tiny()
    (seg,) = sampled_segments(model, [ids(6)])
    seg.logprob_T[np.flatnonzero(seg.sampled_T)[:2]] -= 3.0
    metrics = Trainer(model, config(importance_cap=2.0)).train([rollout("r", [seg])], {"r": 1.0})
    assert metrics["ratio_clipped"] == pytest.approx(2 / 8)


def test_the_shadow_pass_runs_every_so_many_steps() -> None:
    trainer = Trainer(tiny(), config(shadow_every=2, lr=0.0))
    rollouts, advantages = batch()
    seen = []
    for step in range(4):
        rollouts, advantages = batch(step=step)
        seen.append(not math.isnan(trainer.train(rollouts, advantages)["k3_live"]))
    assert seen == [True, False, True, False]


def test_the_learning_rate_warms_up() -> None:
    trainer = Trainer(tiny(), config(lr=0.3e-3, warmup_steps=3))
    assert [trainer.train(*batch())["lr"] for _ in range(5)] == pytest.approx([1e-4, 2e-4, 3e-4, 3e-4, 3e-4])
    assert trainer.step == 5


def test_temperature_is_that_of_the_sampler() -> None:
    """Kind: support mismatch. Logprobs are of the tempered distribution on both sides."""
    model = tiny()
    group = [rollout("r", sampled_segments(model, [ids(6)], temperature=0.6))]
    right = Trainer(copy.deepcopy(model), config(temperature=0.6)).train(group, {"r": 1.0})
    wrong = Trainer(copy.deepcopy(model), config(temperature=1.0)).train(group, {"r": 1.0})
    assert right["k3_replay"] < 1e-10
    assert wrong["k3_replay"] > 1e-2


def test_a_dense_model_trains() -> None:
    model = tiny(dense_layers=3)
    metrics = Trainer(model, config(shadow_every=1)).train(
        [rollout("r", sampled_segments(model, [ids(6)]))], {"r": 1.0}
    )
    assert metrics["k3_replay"] < 1e-10
    assert metrics["coverage"] == 1.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_trainer_goes_on_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    settings = config(kl_beta=0.01, warmup_steps=3, shadow_every=2)
    trainer = Trainer(cast_model(tiny(), dtype), settings)
    for _ in range(2):
        trainer.train(*batch(step=trainer.step))
    trainer.save(tmp_path / "trainer.pt")
    restored = Trainer(cast_model(tiny(), dtype), settings)
    restored.load(tmp_path / "trainer.pt")
    assert restored.step == 2
    for _ in range(3):
        first, second = (one.train(*batch(step=one.step)) for one in (trainer, restored))
        assert {k: v for k, v in first.items() if k != "train_s"} == pytest.approx(
            {k: v for k, v in second.items() if k != "train_s"}, rel=0, abs=0, nan_ok=True
        )
    state = restored.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in trainer.model.state_dict().items())


@pytest.mark.parametrize("damage", ["truncated", "missing", "other model", "not ours"])
def test_a_file_that_is_no_checkpoint_is_one_user_error(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "trainer.pt"
    if damage == "truncated":
        Trainer(tiny(), config()).save(file)
        file.write_bytes(file.read_bytes()[:-1000])
    elif damage == "other model":
        Trainer(tiny("qwen3_moe"), config()).save(file)
    elif damage == "not ours":
        torch.save({"weights": torch.zeros(3)}, file)
    trainer = Trainer(tiny(), config())
    with pytest.raises(UserError) as caught:
        trainer.load(file)
    assert str(file) in str(caught.value)
    assert trainer.step == 0


def test_docs_name_every_metric() -> None:
    text = (ROOT / "docs" / "rl.md").read_text()
    trainer = Trainer(tiny(), config()).train(*batch())
    runtime = re.findall(r'^ +"(\w+)": ', (ROOT / "src/etude/runtime/metrics.py").read_text(), re.MULTILINE)
    assert len(runtime) > 15
    assert [name for name in [*trainer, *runtime] if f"`{name}`" not in text] == []
