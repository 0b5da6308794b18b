"""Replay fixes the set of experts and nothing else. The kinds are those of known faults in other systems."""

import pytest
import torch
from torch import Tensor, nn

from etude.models import RouterTap, balance_experts, combine_weights
from tests.models.tiny import SHAPES, some_ids, tiny


def recorded(model: nn.Module, ids: Tensor) -> Tensor:
    """Live routes of a pass, [N, L, K]."""
    with RouterTap(model).record() as routes, torch.no_grad():
        model(ids)
    return torch.stack(routes, 1)


def random_routes(n: int, tap: RouterTap, seed: int = 0) -> Tensor:
    """Distinct experts at random, [n, L, K]."""
    scores = torch.rand(n, tap.n_layers, tap.n_experts, generator=torch.Generator().manual_seed(seed))
    return scores.topk(tap.top_k, -1).indices


@pytest.mark.parametrize("shape", SHAPES)
def test_self_replay_is_bit_equal(shape: str) -> None:
    model, ids = tiny(shape), some_ids(3, 10)
    with torch.no_grad():
        live = model(ids).logits
        with RouterTap(model).replay(recorded(model, ids)):
            assert torch.equal(model(ids).logits, live)


def test_self_replay_is_bit_equal_in_bf16() -> None:
    model, ids = tiny().to(torch.bfloat16), some_ids(3, 10)
    with torch.no_grad():
        live = model(ids).logits
        with RouterTap(model).replay(recorded(model, ids)):
            assert torch.equal(model(ids).logits, live)


@pytest.mark.parametrize("shape", SHAPES)
def test_kind_fused_router_ignores_replay(shape: str) -> None:
    """The experts used are the experts given, in every layer, and they change the answer."""
    model, ids = tiny(shape), some_ids(2, 8)
    tap = RouterTap(model)
    routes = random_routes(16, tap)
    with torch.no_grad(), tap.replay(routes), tap.record() as used:
        replayed = model(ids).logits
    assert torch.equal(torch.stack(used, 1), routes)
    assert not torch.allclose(replayed, model(ids).logits, atol=1e-2)


@pytest.mark.parametrize("shape", SHAPES)
def test_order_of_a_set_does_not_matter(shape: str) -> None:
    model, ids = tiny(shape), some_ids(2, 8)
    routes = recorded(model, ids)
    with torch.no_grad():
        with RouterTap(model).replay(routes.flip(-1)):
            flipped = model(ids).logits
        torch.testing.assert_close(flipped, model(ids).logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_kind_constant_or_zero_routes(shape: str) -> None:
    """A capture that never ran gives zeros of the right shape: live routes differ by token and layer."""
    routes = recorded(tiny(shape), some_ids(4, 16))
    for layer in range(routes.shape[1]):
        assert len(routes[:, layer].unique(dim=0)) > 4
    assert not torch.equal(routes[:, 0], routes[:, 1])


def loop_weights(router: nn.Module, z: Tensor, chosen: list[int]) -> list[float]:
    """The combine weights of one token by the definition, in Python floats."""
    z = z.double()
    if hasattr(router, "e_score_correction_bias"):
        p, c = [1 / (1 + torch.exp(-value)) for value in z], float(router.routed_scaling_factor)
    else:
        p, c = list(torch.exp(z - z.max()) / torch.exp(z - z.max()).sum()), 1.0
    total = sum(p[e] for e in chosen) if router.norm_topk_prob else 1.0
    return [float(c * p[e] / total) for e in chosen]


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_by_value(shape: str, normalised: bool) -> None:
    router = RouterTap(tiny(shape)).routers[0]
    router.norm_topk_prob = normalised
    if shape == "deepseek_v3":
        router.routed_scaling_factor = 2.5
    z = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([[0, 1], [5, 2], [3, 4], [1, 0], [2, 5]])
    weights = combine_weights(router, z, chosen)
    assert weights.dtype == torch.float32
    for token in range(5):
        assert weights[token].tolist() == pytest.approx(
            loop_weights(router, z[token], chosen[token].tolist()), rel=1e-5
        )


@pytest.mark.parametrize(("shape", "normalised"), [(s, n) for s in SHAPES for n in (True, False)])
def test_gradient_of_the_weights_by_formula(shape: str, normalised: bool) -> None:
    """sigmoid, renormalised: dw_i/dz_m = w_i (1 - p_m) (d_im - w_m / c) for m in S, 0 outside;
    softmax, renormalised: w_i (d_im - w_m) in S, 0 outside; softmax: w_i (d_im - p_m) for all m; sigmoid: diagonal."""
    router = RouterTap(tiny(shape)).routers[0]
    router.norm_topk_prob = normalised
    c = 1.0
    if shape == "deepseek_v3":
        c = router.routed_scaling_factor = 2.5
    z = torch.randn(1, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float32, requires_grad=True)
    chosen = torch.tensor([[4, 1]])
    w = combine_weights(router, z, chosen)[0]
    value = w.tolist()
    p = (z.sigmoid() if shape == "deepseek_v3" else z.softmax(-1))[0].detach()
    for i, expert in enumerate(chosen[0].tolist()):
        (found,) = torch.autograd.grad(w[i], z, retain_graph=True)
        expected = torch.zeros(6)
        for m in range(6):
            same, inside = float(m == expert), m in chosen[0].tolist()
            w_m = value[chosen[0].tolist().index(m)] if inside else 0.0
            if shape == "deepseek_v3":
                factor = (same - w_m / c) * inside if normalised else same
                expected[m] = value[i] * (1 - p[m]) * factor
            else:
                expected[m] = value[i] * ((same - w_m) * inside if normalised else same - p[m])
        torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_kind_dead_gradient_outside_the_live_top_k(shape: str) -> None:
    """Gathering from scores masked to the live top-k gives a replayed expert weight 0 and no gradient."""
    model, ids = tiny(shape).train(), some_ids(1, 1)
    tap = RouterTap(model)
    live = recorded(model, ids)
    foreign = torch.stack(
        [torch.tensor([e for e in range(6) if e not in live[0, layer]][:2]) for layer in range(tap.n_layers)]
    )[None]
    assert not set(foreign[0, 0].tolist()) & set(live[0, 0].tolist())
    seen: list[Tensor] = []
    with tap.replay(foreign):
        handle = tap.routers[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output[1]))
        model(ids).logits.log_softmax(-1)[0, 0, 3].backward()
        handle.remove()
    assert float(seen[0].detach().min()) > 1e-3
    gradient = tap.routers[0].weight.grad.abs().sum(-1)
    assert all(gradient[e] > 0 for e in foreign[0, 0].tolist())
    assert all(
        gradient[e] < 1e-5 * gradient.max() for e in range(6) if e not in foreign[0, 0].tolist()
    )  # softmax: rounding
    experts = model.model.layers[-tap.n_layers].mlp.experts.down_proj.grad.abs().sum((1, 2))
    assert (experts > 0).tolist() == [e in foreign[0, 0].tolist() for e in range(6)]


@pytest.mark.parametrize("row", [[-1, -1], [3, -1], [-1, 0]])
def test_kind_missing_or_partly_missing_row_falls_back_to_live(row: list[int]) -> None:
    model, ids = tiny(), some_ids(1, 6)
    tap = RouterTap(model)
    routes = random_routes(6, tap)
    routes[2, 1] = torch.tensor(row)
    with torch.no_grad(), tap.replay(routes), tap.record() as used:
        model(ids)
    used_NLK = torch.stack(used, 1)
    known = torch.ones(6, 2, dtype=torch.bool)
    known[2, 1] = False
    assert torch.equal(used_NLK[known], routes[known])
    # The same layer live, after the same replayed layer below it.
    routes[:, 1] = -1
    with torch.no_grad(), tap.replay(routes), tap.record() as live:
        model(ids)
    assert torch.equal(used_NLK[2, 1], live[1][2])


def test_all_rows_missing_is_the_live_model() -> None:
    model, ids = tiny(), some_ids(2, 5)
    with torch.no_grad(), RouterTap(model).replay(torch.full((10, 2, 2), -1)):
        assert torch.equal(model(ids).logits, tiny()(ids).logits)


def test_kind_zero_filled_row_is_refused() -> None:
    """A missing row that somebody filled with zeros names expert 0 twice."""
    tap = RouterTap(tiny())
    routes = random_routes(4, tap)
    routes[3] = 0
    with pytest.raises(ValueError, match=r"2 of 8 rows name an expert twice"), tap.replay(routes):
        pass


@pytest.mark.parametrize("wrong", [6, 255, 32767, -2])
def test_kind_sentinel_in_an_unsigned_type_is_refused(wrong: int) -> None:
    """-1 becomes 255 in uint8; an engine that counts physical or fused shared experts sends ids >= E."""
    tap = RouterTap(tiny())
    routes = random_routes(4, tap)
    routes[1, 0, 1] = wrong
    with pytest.raises(ValueError, match=rf"{wrong}.*the model has 0 to 5"), tap.replay(routes):
        pass


def test_kind_layer_axis_shifted_is_refused_with_both_sizes() -> None:
    """Routes of "all layers" have one more layer than the model has routers: the dense one."""
    with (
        pytest.raises(ValueError, match=r"\[3, 2\], the model has \[2, 2\]"),
        RouterTap(tiny()).replay(torch.full((4, 3, 2), -1)),
    ):
        pass


def test_kind_fused_shared_expert_column_is_refused_with_both_sizes() -> None:
    with (
        pytest.raises(ValueError, match=r"\[2, 3\], the model has \[2, 2\]"),
        RouterTap(tiny()).replay(torch.full((4, 2, 3), -1)),
    ):
        pass


def test_kind_rows_and_tokens_differ_is_refused_with_both_sizes() -> None:
    model = tiny()
    tap = RouterTap(model)
    with pytest.raises(ValueError, match="5 rows of routes for 6 tokens"), tap.replay(random_routes(5, tap)):
        model(some_ids(1, 6))


def test_kind_routes_shifted_by_one_token_or_layer_change_the_answer() -> None:
    """A shift is no error that can be seen in shapes: it must be far worse than replay, so that k3 shows it."""
    model, ids = tiny(), some_ids(4, 16)
    routes, tap = recorded(model, ids), RouterTap(model)

    def gap(shifted: Tensor) -> float:
        with torch.no_grad(), tap.replay(shifted):
            return float((model(ids).logits.log_softmax(-1) - live).abs().mean())

    live = model(ids).logits.log_softmax(-1).detach()
    assert gap(routes) == 0
    assert gap(routes.roll(1, 0)) > 0.05
    assert gap(routes.roll(1, 1)) > 0.05


def hooks(tap: RouterTap) -> int:
    return sum(len(router._forward_hooks) for router in tap.routers)


@pytest.mark.parametrize("context", ["record", "replay"])
def test_kind_hooks_outlive_their_context(context: str) -> None:
    model = tiny()
    tap = RouterTap(model)
    enter = tap.record() if context == "record" else tap.replay(torch.full((4, 2, 2), -1))
    with pytest.raises(ValueError, match="vocabulary"), enter:
        assert hooks(tap) == 2
        raise ValueError("the pass broke: an id beyond the vocabulary")
    assert hooks(tap) == 0
    with pytest.raises(ValueError, match="rows of routes"), tap.replay(torch.full((4, 2, 2), -1)):
        model(some_ids(1, 5))
    assert hooks(tap) == 0


def test_kind_replay_of_one_model_leaks_into_another() -> None:
    """A copy made while nothing is hooked, as the reference model is, routes for itself."""
    model, reference, ids = tiny(), tiny(), some_ids(1, 5)
    live = reference(ids).logits
    with RouterTap(model).replay(random_routes(5, RouterTap(model))):
        assert torch.equal(reference(ids).logits, live)


def test_kind_one_expert_per_token() -> None:
    """Where K = 1 a row of zeros is expert 0 and nothing else; missing is still -1."""
    model, ids = tiny(experts_per_token=1), some_ids(1, 6)
    routes = torch.zeros(6, 2, 1, dtype=torch.int16)
    routes[4] = -1
    tap = RouterTap(model)
    with torch.no_grad(), tap.replay(routes), tap.record() as used:
        model(ids)
    assert all(layer[token].item() == 0 for layer in used for token in range(6) if token != 4)
    with torch.no_grad(), tap.replay(recorded(model, ids)):
        assert torch.equal(model(ids).logits, tiny(experts_per_token=1)(ids).logits)


def test_kind_dense_model_with_capture_on() -> None:
    model, ids = tiny(dense_layers=3), some_ids(1, 4)
    tap = RouterTap(model)
    assert (tap.n_layers, tap.top_k) == (0, 0)
    with torch.no_grad(), tap.replay(torch.zeros(4, 0, 0, dtype=torch.int16)), tap.record() as used:
        model(ids)
    assert used == []


def load(model: nn.Module, ids: Tensor) -> Tensor:
    """Tokens of each expert, [L, E]."""
    routes = recorded(model, ids)
    return torch.stack([torch.bincount(routes[:, layer].flatten(), minlength=6) for layer in range(routes.shape[1])])


def test_balance_moves_load_towards_the_mean() -> None:
    model, ids = tiny(), some_ids(8, 32)
    tap = RouterTap(model)
    before = load(model, ids).float().std(-1)
    for _ in range(60):
        balance_experts(tap.routers, recorded(model, ids), 0.01)
    assert (load(model, ids).float().std(-1) < 0.5 * before).all()


def test_balance_by_value() -> None:
    tap = RouterTap(tiny())
    before = [router.e_score_correction_bias.clone() for router in tap.routers]
    routes = torch.tensor([[[0, 1], [0, 1]], [[0, 2], [2, 3]], [[0, 3], [4, 5]]])  # loads 3 1 1 1 0 0 and 1 each
    balance_experts(tap.routers, routes, 0.125)
    moved = [router.e_score_correction_bias - old for router, old in zip(tap.routers, before, strict=True)]
    torch.testing.assert_close(moved[0], 0.125 * torch.tensor([-1.0, 0, 0, 0, 1, 1]))
    torch.testing.assert_close(moved[1], torch.zeros(6))


def test_balance_leaves_routers_without_bias_alone() -> None:
    model = tiny("qwen3_moe")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    balance_experts(RouterTap(model).routers, random_routes(9, RouterTap(model)), 0.1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
