"""Keys and values are reused where they are right, and only there."""

import numpy as np
import pytest

from etude.inference import Generation, Request
from etude.inference.local import LocalEngine
from tests.inference.drive import Expected, ask, counted_tokens, engine, expect, ids, run
from tests.models.tiny import SHAPES, tiny


def continued(answer: Generation, request: Request, more: int, seed: int) -> np.ndarray:
    """The session so far and an observation of `more` tokens."""
    return np.concatenate([request.ids_T, answer.ids_N, ids(more, seed=seed)])


def turns(local: LocalEngine, session: str, count: int, seed: int = 0) -> list[tuple[Request, Generation]]:
    """A session of several requests, each the one before with its answer and 3 new tokens."""
    request = ask(session, ids(8, seed=seed), 4, seed=seed)
    played = []
    for turn in range(count):
        answer = run(local, request)[session]
        played.append((request, answer))
        request = ask(session, continued(answer, request, 3, turn), 4, seed=seed + turn)
    return played


@pytest.mark.parametrize("shape", SHAPES)
def test_a_session_of_many_turns_answers_like_a_fresh_engine(shape: str) -> None:
    model = tiny(shape)
    for request, answer in turns(engine(model), "a", 4):
        Expected(model, request).matches(answer)
        fresh = run(engine(model), request)["a"]
        assert fresh.ids_N.tolist() == answer.ids_N.tolist()
        np.testing.assert_allclose(fresh.logprobs_N, answer.logprobs_N, rtol=0, atol=1e-5)


def test_a_session_reuses_its_cache() -> None:
    model = tiny()
    with counted_tokens(model) as seen:
        turns(engine(model), "a", 3)
    # 8 tokens of prompt, then each turn the last sampled token and 3 new ones; every other pass reads one token.
    assert [tokens for tokens in seen if tokens > 1] == [8, 4, 4]
    assert len(seen) == 12


def test_kind_boundary_row_of_a_turn() -> None:
    """The last token of a turn is consumed by the next one: a caller that holds T - 1 rows gets the rest, no more."""
    model, local = tiny(), engine(tiny())
    first = ask("a", ids(8), 4)
    answer = run(local, first)["a"]
    held = len(answer.routes_RLK)
    assert held == 11
    second = ask("a", continued(answer, first, 3, 0), 4, routes_from=held)
    rest = run(local, second)["a"].routes_RLK
    assert len(rest) == len(second.ids_T) + 4 - 1 - held
    whole = Expected(model, ask("a", second.ids_T, 4)).routes_RLK
    assert np.array_equal(np.sort(np.concatenate([answer.routes_RLK, rest]), -1), np.sort(whole, -1))


def test_a_group_computes_its_prompt_once() -> None:
    model, prompt = tiny(), ids(20)
    requests = [ask(f"g{member}", prompt, 6, seed=member) for member in range(6)]
    with counted_tokens(model) as seen:
        answers = run(engine(model), *requests)
    assert sum(seen) == 20 + 6 * 6 - 1, "the prompt once, then one token for each that was sampled"
    expect(model, answers, requests)


def test_a_late_member_of_a_group_copies_from_one_that_went_on() -> None:
    model, prompt = tiny(), ids(20)
    local = engine(model)
    turns_of_first = run(local, ask("g0", prompt, 6))["g0"]
    run(local, ask("g0", np.concatenate([prompt, turns_of_first.ids_N]), 6, seed=4))
    with counted_tokens(model) as seen:
        late = run(local, ask("g1", prompt, 3, seed=1))
    assert sum(seen) == 3
    expect(model, late, [ask("g1", prompt, 3, seed=1)])


def test_groups_under_slot_pressure_are_right() -> None:
    model = tiny()
    requests = [ask(f"g{g}-{m}", ids(12, seed=g), 4, seed=10 * g + m) for g in range(3) for m in range(4)]
    expect(model, run(engine(model, slots=3, prefill_tokens=13), *requests), requests)


def test_an_idle_session_that_was_evicted_goes_on_right() -> None:
    model = tiny()
    local = engine(model, slots=2)
    first = {name: ask(name, ids(9, seed=n), 4, seed=n) for n, name in enumerate("abc")}
    answers = {name: run(local, request)[name] for name, request in first.items()}  # c evicts a
    second = [ask(name, continued(answers[name], first[name], 2, n), 4) for n, name in enumerate("abc")]
    expect(model, run(local, *second), second)


def test_the_longest_idle_session_is_the_one_evicted() -> None:
    model = tiny()
    local = engine(model, slots=2)
    first = {name: ask(name, ids(9, seed=n), 2, seed=n) for n, name in enumerate("ab")}
    answers = {name: run(local, request)[name] for name, request in first.items()}
    back = ask("a", continued(answers["a"], first["a"], 2, 0), 2)
    again = run(local, back)["a"]  # a is used again, so c takes b's slot
    run(local, ask("c", ids(9, seed=7), 2))
    with counted_tokens(model) as seen:
        run(local, ask("a", continued(again, back, 2, 1), 1))
    assert seen == [3], "a still has its rows: the last sampled token and two new ones are read"


class Stale:
    """Session a holds prompt P; what it does next must keep others from copying rows that are P's no longer."""

    def __init__(self, shape: str = "deepseek_v3") -> None:
        self.model = tiny(shape)
        self.local = engine(self.model)
        self.prompt = ids(20, seed=1)
        run(self.local, ask("a", self.prompt, 4))

    def check(self) -> None:
        """A new session with prompt P, and a itself with P again, answer as on a fresh engine."""
        for request in (ask("b", self.prompt, 4, seed=5), ask("a", self.prompt, 4, seed=6)):
            Expected(self.model, request).matches(run(self.local, request)[request.session])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("agreeing", [1, 5, 18])
def test_kind_stale_prompt_after_a_new_segment(shape: str, agreeing: int) -> None:
    """a starts a new segment that agrees with P for a few tokens: its rows from there on are another text's."""
    case = Stale(shape)
    request = ask("a", np.concatenate([case.prompt[:agreeing], ids(15, seed=2)]), 4)
    expect(case.model, run(case.local, request), [request])
    case.check()


def test_kind_stale_prompt_after_another_text() -> None:
    case = Stale()
    request = ask("a", ids(22, seed=3), 4)
    expect(case.model, run(case.local, request), [request])
    case.check()


def test_kind_stale_prompt_after_copying_another_prompt() -> None:
    """a's next request equals c's prompt and is copied over P."""
    case = Stale()
    other = ids(16, seed=4)
    run(case.local, ask("c", other, 2))
    request = ask("a", other, 4, seed=3)
    expect(case.model, run(case.local, request), [request])
    case.check()


def test_kind_stale_prompt_after_a_shorter_one() -> None:
    """a goes on from the first 8 tokens of P; a wide neighbour in the same pass pads a's row over the rest of P."""
    case = Stale()
    requests = [ask("a", case.prompt[:8], 3), ask("wide", ids(30, seed=6), 1)]
    expect(case.model, run(case.local, *requests), requests)
    case.check()


def test_a_prompt_that_is_still_whole_is_still_copied() -> None:
    """The rule must not be so strict that it forbids what it is for."""
    case = Stale()
    answer = run(case.local, ask("a", case.prompt, 4))["a"]
    run(case.local, ask("a", np.concatenate([case.prompt, answer.ids_N, ids(3)]), 4))
    with counted_tokens(case.model) as seen:
        run(case.local, ask("b", case.prompt, 1))
    assert seen == [1]


def test_a_released_session_leaves_nothing() -> None:
    model = tiny()
    local = engine(model)
    run(local, ask("a", ids(20), 3))
    local.release("a")
    local.release("never seen")
    with counted_tokens(model) as seen:
        answers = run(local, ask("b", ids(20), 1))
    assert seen == [20]
    expect(model, answers, [ask("b", ids(20), 1)])


@pytest.mark.parametrize("when", [0, 1, 3])
def test_kind_slot_taken_from_a_running_request(when: int) -> None:
    """A caller that gives up releases its session while the request is waiting or running: nobody may get its slot
    before it is finished, and the engine must survive it."""
    model = tiny()
    local = engine(model, slots=1)
    given_up, other = ask("a", ids(6), 8), ask("b", ids(9, seed=1), 8, seed=1)

    def after(step: int) -> None:
        if step == when:
            local.release("a")
            local.submit(other)

    if when == 0:
        local.submit(given_up)
        local.release("a")
        answers = run(local, other)
    else:
        answers = run(local, given_up, after=after)
    expect(model, answers, [given_up, other])
    with counted_tokens(model) as seen:
        run(local, ask("a", ids(6), 1))
    assert seen == [6], "released is forgotten"
    for n in range(3):  # the free list is whole
        expect(model, run(local, ask(f"c{n}", ids(5, seed=n))), [ask(f"c{n}", ids(5, seed=n))])
