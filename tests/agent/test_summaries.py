"""Self-summaries: K of them give K + 1 segments, each is sampled once and copied once, and nothing done is dropped."""

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.agent import Agent, ToolCall
from etude.agent.scripted import ScriptedEngine
from etude.config.agent import AgentConfig
from etude.records import Origin, Outcome, Rollout, Segment
from tests.agent.doubles import Fleet, Player, call, katas, template, tokenizer, version

KATA = katas()[0]
PROMPT = [*template().task(KATA.prompt), *template().turn()]
SIZES: dict[str, int] = {"max_action": 24, "max_observation": 20, "max_summary": 12}
RESERVE = 24 + 20 + 3 + 2 + 12
OUTPUT = "1 2 3 4 5 6 7 8 9 1 2 3"  # what every program prints
SUMMARY = template().summary("2 a >b")


def config(spare: int, **changes: int) -> AgentConfig:
    """A window that has `spare` tokens more than the prompt and one turn need."""
    fields = {**SIZES, "max_turns": 6, "max_summaries": 2, **changes}
    return AgentConfig(context=len(PROMPT) + RESERVE + spare, **fields)


def run(engine: Player, settings: AgentConfig) -> Rollout:
    agent = Agent(engine, Fleet(output=OUTPUT), template(), settings, temperature=1.0)
    return asyncio.run(agent.run(KATA.task(), "r1", "g1", seed=0))


def part(segment: Segment, origin: Origin) -> list[int]:
    return segment.ids_T[segment.origin_T == origin].tolist()


def test_the_reserve_is_one_turn_the_request_and_the_summary() -> None:
    assert AgentConfig(**SIZES).reserve == RESERVE
    wrapped = template().observation("1" * 20, 20)
    assert 24 + len(wrapped) + len(template().query()) + 12 == RESERVE


def test_a_summary_is_sampled_once_and_copied_once() -> None:
    ran = template().observation(OUTPUT, 20)
    room = len(SUMMARY) + 2
    engine = Player([call("run"), SUMMARY, call("view"), SUMMARY, call("finish")])
    rollout = run(engine, config(room))
    assert rollout.counts == {"turns": 3, "tool_errors": 0, "summaries": 2, "summaries_cut": 0}
    first, second, third = rollout.segments
    assert part(first, Origin.SAMPLED) == call("run") + SUMMARY
    assert part(second, Origin.SAMPLED) == call("view") + SUMMARY
    assert part(third, Origin.SAMPLED) == call("finish")
    carried = [template().query()[1], *SUMMARY]
    assert [part(segment, Origin.COPIED) for segment in rollout.segments] == [[], carried, carried]
    assert [part(segment, Origin.QUERY) for segment in rollout.segments] == [template().query()] * 2 + [[]]
    assert [part(segment, Origin.PROMPT) for segment in rollout.segments] == [PROMPT] * 3
    assert part(first, Origin.OBSERVATION) == ran
    assert first.ids_T.tolist() == PROMPT + call("run") + ran + template().query() + SUMMARY
    assert second.ids_T.tolist()[: len(PROMPT) + len(carried)] == PROMPT[:-1] + carried + PROMPT[-1:]
    for segment, versions in zip(rollout.segments, ([1, 2], [3, 4], [5]), strict=True):
        assert [span.version for span in segment.spans] == [version(number) for number in versions]
        assert segment.routes_TLK[:, 0, 0].tolist() == [*range(len(segment) - 1), -1]
        assert np.isnan(segment.logprob_T[~segment.sampled_T]).all()


def test_fault_26_summary_tokens_not_trained() -> None:
    """The summary is SAMPLED, with its logprobs, in the window that it ends; the copy is not."""
    rollout = run(Player([call("run"), SUMMARY, call("finish")]), config(len(SUMMARY) + 2))
    first, second = rollout.segments
    assert first.ids_T[-len(SUMMARY) :].tolist() == SUMMARY
    assert first.sampled_T[-len(SUMMARY) :].all()
    assert not second.sampled_T[second.origin_T == Origin.COPIED].any()
    assert rollout.sampled_tokens == len(call("run")) + len(SUMMARY) + len(call("finish"))


def test_a_summary_that_was_cut_is_counted_and_carried() -> None:
    endless = tokenizer().encode_text("1" * 30)
    rollout = run(Player([call("run"), endless, call("finish")]), config(14))
    assert rollout.counts["summaries_cut"] == 1
    assert part(rollout.segments[0], Origin.SAMPLED) == call("run") + endless[:12]
    assert part(rollout.segments[1], Origin.COPIED) == [template().query()[1], *endless[:12], template().end]


def test_the_loop_of_summaries_has_an_end() -> None:
    """When one summary more would be needed than is allowed, the rollout is OVERLONG."""
    engine = Player([call("run"), SUMMARY, call("run"), SUMMARY, call("run")])
    rollout = run(engine, config(len(SUMMARY) + 2))
    assert (rollout.outcome, rollout.reward) == (Outcome.OVERLONG, 0.0)
    assert rollout.detail == "more than 2 summaries"
    assert len(rollout.segments) == 3


def test_a_task_that_leaves_no_room_for_a_turn_is_overlong_and_asks_nothing() -> None:
    engine = Player([])
    rollout = run(engine, config(-1))
    assert (rollout.outcome, rollout.segments, engine.requests) == (Outcome.OVERLONG, (), [])


def test_a_task_and_summary_that_leave_no_room_for_a_turn_are_overlong() -> None:
    engine = Player([call("run"), SUMMARY])
    rollout = run(engine, config(0))
    assert rollout.outcome is Outcome.OVERLONG
    assert "leave no room for a turn" in rollout.detail
    assert len(rollout.segments) == 1  # the new window had no sampled token


@dataclass
class Case:
    """Answers of any kind, enough of them for every turn and summary."""

    settings: AgentConfig
    answers: list[list[int]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    turns = draw(st.integers(1, 6))
    summaries = draw(st.integers(0, 3))
    sizes = {name: draw(st.integers(1, 16)) for name in SIZES}
    reserve = AgentConfig(**sizes).reserve
    context = len(PROMPT) + reserve + draw(st.integers(-2, 60))
    settings = AgentConfig(context=context, max_turns=turns, max_summaries=summaries, **sizes)
    tokens = st.lists(st.integers(17, 511), min_size=1, max_size=20)
    one = st.one_of(
        st.sampled_from([call("view"), call("run"), call("edit", "1", "zzz", "q"), call("finish")]),
        tokens,
        tokens.map(lambda ids: [*ids, template().end]),
    )
    return Case(settings, draw(st.lists(one, min_size=turns + summaries, max_size=turns + summaries)))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_whatever_is_sampled_fits_and_nothing_executed_is_dropped(case: Case) -> None:
    engine = Player(case.answers)
    rollout = run(engine, case.settings)
    for request in engine.requests:
        assert len(request.ids_T) + request.max_tokens <= case.settings.context
    for segment in rollout.segments:
        assert len(segment.check()) <= case.settings.context
    assert rollout.counts["turns"] <= case.settings.max_turns
    assert rollout.counts["summaries"] <= case.settings.max_summaries
    assert len(rollout.segments) in (rollout.counts["summaries"], rollout.counts["summaries"] + 1)
    sampled = [token for segment in rollout.segments for token in part(segment, Origin.SAMPLED)]
    assert sampled == [token for ids in engine.written for token in ids]  # each once, in order
    unanswered = rollout.detail == "nothing was changed" or "malformed" in rollout.detail  # the last call ended it
    answered = rollout.counts["turns"] - unanswered
    marker = template().observation("", 1)[0]
    shown = [part(segment, Origin.OBSERVATION).count(marker) for segment in rollout.segments]
    assert sum(shown) == answered  # every call was answered in the window that it was made in
    _check_prefixes(engine, rollout)


def _check_prefixes(engine: Player, rollout: Rollout) -> None:
    """Fault 14, history rewritten: each request of a window is the one before with its answer and what came since, and
    together they are the segment."""
    requests: list[Any] = list(zip(engine.requests, engine.written, strict=True))
    for segment in rollout.segments:
        ids = segment.ids_T.tolist()
        at = 0
        while requests and requests[0][0].ids_T.tolist() == ids[: len(requests[0][0].ids_T)]:
            request, wrote = requests[0]
            if len(request.ids_T) < at:
                break  # the first request of the next window, which begins alike
            at = len(request.ids_T) + len(wrote)
            assert ids[len(request.ids_T) : at] == wrote
            requests.pop(0)
        assert at > 0
    assert requests == []


def test_a_demonstrated_summary_names_the_edits() -> None:
    edit = ToolCall("edit", ("2", " -", " +"))
    engine = ScriptedEngine(template(), [edit, ToolCall("run")])
    agent = Agent(engine, Fleet(output=OUTPUT), template(), config(16, max_action=30), temperature=1.0)
    segments = asyncio.run(agent.work(KATA.task(), "demo"))
    assert len(segments) > 1
    copied = tokenizer().decode(part(segments[1], Origin.COPIED))
    assert copied == "<|summary|>2 - > +<|end|>"
