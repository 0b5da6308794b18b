"""What the engine answers is what full forward passes say: ids, logprobs, routes."""

import numpy as np
import pytest

from etude.inference import EngineLog, Finish
from etude.records import VersionSpan
from tests.inference.drive import Expected, ask, engine, expect, ids, run, version
from tests.models.tiny import SHAPES, tiny


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_lengths_in_one_batch_equal_full_passes(shape: str, tied: bool) -> None:
    model = tiny(shape, tie_embeddings=tied)
    requests = [ask(f"s{n}", ids(n, seed=n), max_tokens=m, seed=n) for n, m in ((1, 6), (9, 3), (4, 9), (30, 1))]
    expect(model, run(engine(model), *requests), requests)


def test_more_requests_than_slots_are_all_answered_right() -> None:
    model = tiny()
    requests = [ask(f"s{n}", ids(3 + n, seed=n), max_tokens=2 + n % 4, seed=n) for n in range(9)]
    expect(model, run(engine(model, slots=2), *requests), requests)


@pytest.mark.parametrize("prefill_tokens", [1, 12, 25])
def test_a_small_prefill_budget_changes_no_answer(prefill_tokens: int) -> None:
    model = tiny()
    requests = [ask(f"s{n}", ids(10, seed=n), seed=n) for n in range(5)]
    local = engine(model, prefill_tokens=prefill_tokens)
    widths: list[int] = []
    forward = local._forward

    def spy(slots_B, start_B, new_B):  # type: ignore[no-untyped-def]
        widths.append(int(new_B.max()) * len(new_B) if new_B.max() > 1 else 0)
        return forward(slots_B, start_B, new_B)

    local._forward = spy  # type: ignore[method-assign]
    expect(model, run(local, *requests), requests)
    assert max(widths) <= max(prefill_tokens, 10), "one row is always admitted, two only within the budget"


def test_the_same_seed_gives_the_same_sample_whatever_else_is_in_the_batch() -> None:
    model = tiny()
    mine = ask("mine", ids(7, seed=7), max_tokens=8, seed=42)
    alone = run(engine(model), mine)["mine"]
    for others in (1, 3, 7):
        crowd = [ask(f"o{n}", ids(2 + 5 * n, seed=n), max_tokens=3 * n + 1, seed=n) for n in range(others)]
        found = run(engine(model), *crowd, mine)["mine"]
        assert found.ids_N.tolist() == alone.ids_N.tolist()
        np.testing.assert_allclose(found.logprobs_N, alone.logprobs_N, rtol=0, atol=1e-5)
        assert np.array_equal(found.routes_RLK, alone.routes_RLK)


def test_other_seeds_give_other_samples() -> None:
    prompt = ids(6)
    requests = [ask(f"s{seed}", prompt, max_tokens=6, seed=seed) for seed in range(6)]
    answers = run(engine(tiny()), *requests)
    assert len({tuple(answer.ids_N.tolist()) for answer in answers.values()}) == 6


@pytest.mark.parametrize("shape", SHAPES)
def test_temperature_is_in_the_logprobs_and_0_is_greedy(shape: str) -> None:
    model = tiny(shape)
    requests = [
        ask("cold", ids(5), temperature=0.5, seed=3),
        ask("hot", ids(5, seed=1), temperature=1.7, seed=3),
        ask("greedy", ids(5, seed=2), temperature=0.0, seed=3),
        ask("greedy too", ids(5, seed=2), temperature=0.0, seed=4),
    ]
    answers = run(engine(model), *requests)
    expect(model, answers, requests)
    assert answers["greedy"].ids_N.tolist() == answers["greedy too"].ids_N.tolist()


def test_the_stop_token_ends_a_generation_and_is_part_of_it() -> None:
    model = tiny()
    free = ask("a", ids(6), max_tokens=9, seed=5)
    stop = int(Expected(model, free).ids_N[4])
    request = ask("a", ids(6), max_tokens=9, seed=5, stop_id=stop)
    found = run(engine(model), request)["a"]
    Expected(model, request).matches(found)
    assert found.finish is Finish.STOP
    assert found.ids_N[-1] == stop
    assert stop not in found.ids_N[:-1]


def test_a_stop_token_as_the_very_first_sample() -> None:
    model = tiny()
    stop = int(Expected(model, ask("a", ids(6), 1)).ids_N[0])
    found = run(engine(model), ask("a", ids(6), stop_id=stop))["a"]
    assert (found.ids_N.tolist(), found.finish, found.routes_RLK.shape) == ([stop], Finish.STOP, (6, 2, 2))


def test_max_tokens_and_the_context_end_a_generation() -> None:
    model = tiny()
    local = engine(model, context=16)
    requests = [ask("few", ids(6), max_tokens=3), ask("full", ids(11, seed=1), max_tokens=99), ask("one", ids(15), 9)]
    answers = run(local, *requests)
    assert {name: (len(a.ids_N), a.finish) for name, a in answers.items()} == {
        "few": (3, Finish.LENGTH),
        "full": (5, Finish.LENGTH),
        "one": (1, Finish.LENGTH),
    }
    for request in requests:
        Expected(model, request, context=16).matches(answers[request.session])


def test_stopping_on_the_last_token_counts_as_stopped() -> None:
    model = tiny()
    stop = int(Expected(model, ask("a", ids(6), 3, seed=8)).ids_N[2])
    found = run(engine(model), ask("a", ids(6), 3, seed=8, stop_id=stop))["a"]
    assert found.finish is Finish.STOP


def test_kind_a_session_of_t_tokens_has_t_minus_1_rows() -> None:
    """The last token was consumed by no pass; every row before it is there, prompt rows too."""
    answers = run(engine(tiny()), *[ask(f"s{n}", ids(n, seed=n), seed=n) for n in (1, 2, 17)])
    for n in (1, 2, 17):
        routes = answers[f"s{n}"].routes_RLK
        assert len(routes) == n + len(answers[f"s{n}"].ids_N) - 1
        assert routes.min() >= 0, "-1 inside"
        assert (np.sort(routes, -1)[..., 0] != np.sort(routes, -1)[..., 1]).all()


def test_kind_constant_decode_rows() -> None:
    """Captured graphs were seen to give every decoded token the same row."""
    routes = run(engine(tiny()), ask("a", ids(3), 20, seed=1))["a"].routes_RLK[3:]
    assert len(np.unique(routes, axis=0)) > 3


def test_routes_from_leaves_out_the_rows_that_the_caller_holds() -> None:
    model = tiny()
    whole = run(engine(model), ask("a", ids(9), seed=2))["a"].routes_RLK
    for held in (0, 1, 8, 9):
        part = run(engine(model), ask("a", ids(9), seed=2, routes_from=held))["a"].routes_RLK
        assert np.array_equal(part, whole[held:])


def test_a_dense_model_has_no_routes_and_still_answers() -> None:
    model = tiny(dense_layers=3)
    requests = [ask("a", ids(4)), ask("b", ids(9, seed=1))]
    answers = run(engine(model), *requests)
    expect(model, answers, requests)
    assert answers["a"].routes_RLK.shape == (8, 0, 0)


def test_every_token_is_of_the_version_that_was_set() -> None:
    local = engine(tiny())
    assert run(local, ask("a", ids(4)))["a"].spans == (VersionSpan(0, 5, version(0)),)


def test_the_log_is_what_was_read_and_written() -> None:
    log = EngineLog()
    requests = [ask(f"s{n}", ids(3 + n, seed=n), seed=n) for n in range(4)]
    answers = run(engine(tiny(), log), *requests)
    wanted = {(r.session, tuple(r.ids_T.tolist()), tuple(answers[r.session].ids_N.tolist())) for r in requests}
    assert set(log.entries) == wanted
    assert len(log.entries) == 4


def test_sampled_tokens_are_counted() -> None:
    local = engine(tiny())
    answers = run(local, ask("a", ids(4), 3), ask("b", ids(5), 7))
    assert local.sampled_tokens == sum(len(answer.ids_N) for answer in answers.values())
