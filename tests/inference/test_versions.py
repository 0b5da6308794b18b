"""Weights change between two passes: nothing is dropped, and every token says whose it is."""

import copy

import numpy as np
import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from etude.inference import Generation, Request
from etude.inference.local import LocalEngine
from etude.records import VersionSpan
from tests.inference.drive import Expected, ask, counted_tokens, engine, expect, ids, run, version
from tests.models.tiny import SHAPES, perturb, tiny


def change(local: LocalEngine, step: int) -> None:
    """New weights, in place."""
    perturb(local.model, seed=step)
    local.set_version(version(step))


def updated_after(local: LocalEngine, steps: dict[int, int], *requests: Request) -> dict[str, Generation]:
    """Run; after engine step n the weights become those of version steps[n]."""
    return run(local, *requests, after=lambda step: change(local, steps[step]) if step in steps else None)


def test_kind_version_read_at_the_wrong_moment() -> None:
    """Tokens drawn before the change are the old version's, those after it the new one's: never the last label."""
    requests = [ask("a", ids(5), 9), ask("b", ids(8, seed=1), 3), ask("c", ids(6, seed=2), 6)]
    answers = updated_after(engine(tiny()), {2: 1, 5: 2}, *requests)
    assert answers["a"].spans == (
        VersionSpan(0, 2, version(0)),
        VersionSpan(2, 5, version(1)),
        VersionSpan(5, 9, version(2)),
    )
    assert answers["b"].spans == (VersionSpan(0, 2, version(0)), VersionSpan(2, 3, version(1)))
    assert {name: len(answer.ids_N) for name, answer in answers.items()} == {"a": 9, "b": 3, "c": 6}


def test_two_changes_without_a_token_between_them_leave_no_empty_span() -> None:
    local = engine(tiny())

    def after(step: int) -> None:
        if step == 2:
            change(local, 1)
            change(local, 2)

    spans = run(local, ask("a", ids(5), 4), after=after)["a"].spans
    assert spans == (VersionSpan(0, 2, version(0)), VersionSpan(2, 4, version(2)))


def test_a_request_that_waited_is_wholly_of_the_new_version() -> None:
    local = engine(tiny(), slots=1)
    answers = updated_after(local, {2: 1}, ask("first", ids(5), 4), ask("waits", ids(6, seed=1), 3))
    assert answers["waits"].spans == (VersionSpan(0, 3, version(1)),)
    expect(local.model, {"waits": answers["waits"]}, [ask("waits", ids(6, seed=1), 3)])


def next_logprobs_over_old_rows(
    old: PreTrainedModel, new: PreTrainedModel, read_by_old: list[int], token: int
) -> torch.Tensor:
    """Log-probabilities after `token`, read by the new weights over keys and values of the old ones."""
    cache = DynamicCache(config=old.config)
    with torch.no_grad():
        old(torch.tensor([read_by_old]), past_key_values=cache)
        return new(torch.tensor([[token]]), past_key_values=cache).logits[0, -1].log_softmax(-1)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_running_request_goes_on_over_the_rows_it_has(shape: str) -> None:
    local = engine(tiny(shape))
    old = copy.deepcopy(local.model)
    request = ask("a", ids(7), 6, seed=3)
    found = updated_after(local, {3: 1}, request)["a"]
    before = Expected(old, request)
    assert found.ids_N[:3].tolist() == before.ids_N[:3].tolist()
    np.testing.assert_allclose(found.logprobs_N[:3], before.logprobs_N[:3], rtol=0, atol=1e-5)
    read = [*request.ids_T.tolist(), *found.ids_N[:2].tolist()]
    wanted = next_logprobs_over_old_rows(old, local.model, read, int(found.ids_N[2]))
    assert found.logprobs_N[3] == pytest.approx(float(wanted[found.ids_N[3]]), abs=1e-5)
    with torch.no_grad():
        all_new = local.model(torch.tensor([[*read, int(found.ids_N[2])]])).logits[0, -1].log_softmax(-1)
    assert float((all_new - wanted).abs().max()) > 1e-2, "old and new rows are equal: the test shows nothing"


@pytest.mark.parametrize("shape", SHAPES)
def test_kind_old_rows_serve_a_new_session(shape: str) -> None:
    """The label would be right and the logprobs not: a prompt is copied only from rows of the same version."""
    local = engine(tiny(shape))
    prompt = ids(15)
    run(local, ask("old", prompt, 4))
    change(local, 1)
    request = ask("new", prompt, 4)
    with counted_tokens(local.model) as seen:
        answer = run(local, request)
    assert seen[0] == 15
    expect(local.model, answer, [request])


def test_kind_old_rows_serve_a_group_that_started_before_the_change() -> None:
    """One member computed the prompt, the others waited for a slot while the weights changed."""
    local = engine(tiny(), slots=2)
    prompt = ids(15)
    requests = [ask(f"g{member}", prompt, 5, seed=member) for member in range(4)]
    answers = updated_after(local, {3: 1}, *requests)
    late = {r.session: answers[r.session] for r in requests if answers[r.session].spans[0].version == version(1)}
    assert len(late) == 2
    expect(local.model, late, [r for r in requests if r.session in late])


def test_kind_old_rows_serve_a_request_that_was_put_off() -> None:
    """A copy of a prompt's rows must not be made for a request that this pass has no room for."""
    local = engine(tiny(), prefill_tokens=24)
    prompt = ids(20)
    run(local, ask("old", prompt, 2))
    requests = [ask("wide", ids(20, seed=1), 3), ask("new", prompt, 3, seed=1)]
    answers = updated_after(local, {1: 1}, *requests)
    assert answers["new"].spans == (VersionSpan(0, 3, version(1)),)
    expect(local.model, {"new": answers["new"]}, [requests[1]])


def test_a_prompt_computed_by_the_new_version_is_shared_again() -> None:
    local = engine(tiny())
    prompt = ids(15)
    run(local, ask("old", prompt, 2))
    change(local, 1)
    run(local, ask("new", prompt, 2))
    request = ask("newer", prompt, 2, seed=2)
    with counted_tokens(local.model) as seen:
        answer = run(local, request)
    assert seen == [1, 1]
    expect(local.model, answer, [request])
