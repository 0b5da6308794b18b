"""From a task to an outcome: how a rollout ends, and that trouble is blamed on whom it belongs to."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.agent import Agent, call_seed
from etude.config.agent import AgentConfig
from etude.machines import ExecStatus, WorkspaceError
from etude.records import InfraError, Origin, Outcome, Rollout
from etude.tasks.katas import Kata
from tests.agent.doubles import Fleet, Player, call, fix_of, katas, template, text_of, tokenizer, version
from tests.tasks.fakes import FolderFleet

KATA = katas()[0]
ROOMY = AgentConfig(context=1024, max_turns=4, max_action=40)
UNDO = call("edit", str(KATA.fix.line), KATA.fix.new, KATA.fix.old)


def run(engine: Player, fleet: Any, config: AgentConfig = ROOMY, kata: Kata = KATA) -> Rollout:
    agent = Agent(engine, fleet, template(), config, temperature=0.7)
    return asyncio.run(agent.run(kata.task(), "r1", "g1", seed=5, attempt=2))


def observations(rollout: Rollout) -> list[str]:
    """What the tools said, in order."""
    shown, runs = [], []
    for segment in rollout.segments:
        for token, origin in zip(segment.ids_T.tolist(), segment.origin_T.tolist(), strict=True):
            if origin == Origin.OBSERVATION:
                runs.append(token)
            elif runs:
                shown.append(text_of(runs))
                runs = []
    return [text.removeprefix("<|observation|>").removesuffix("<|end|><|assistant|>") for text in shown]


def test_the_right_edit_is_solved() -> None:
    engine, fleet = Player([fix_of(KATA), call("run"), call("finish")]), FolderFleet()
    rollout = run(engine, fleet)
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0)
    assert (rollout.rollout_id, rollout.group_id, rollout.tier, rollout.attempt) == ("r1", "g1", KATA.tier, 2)
    assert rollout.counts == {"turns": 3, "tool_errors": 0, "summaries": 0}
    assert observations(rollout) == ["ok", "ok"]
    assert engine.released == ["r1"]
    assert len(fleet.opened) == 2 and all(machine.closed for machine in fleet.opened)  # one to work in, one to grade in
    assert "hidden_tests.py" not in fleet.opened[0].seen_at_exec


def test_who_only_reads_and_edits_needs_no_machine_but_the_one_for_grading() -> None:
    fleet = FolderFleet()
    rollout = run(Player([call("view"), fix_of(KATA), call("finish")]), fleet)
    assert rollout.outcome is Outcome.SOLVED
    assert len(fleet.opened) == 1


def test_a_wrong_edit_is_failed() -> None:
    wrong = call("edit", "1", "f", "g")
    rollout = run(Player([wrong, call("finish")]), FolderFleet())
    assert (rollout.outcome, rollout.reward) == (Outcome.FAILED, 0.0)


@pytest.mark.parametrize("edits", [[], [fix_of(KATA), UNDO]], ids=["nothing", "undone"])
def test_a_task_that_was_not_touched_is_failed_without_grading(edits: list[list[int]]) -> None:
    fleet = Fleet()
    rollout = run(Player([*edits, call("finish")]), fleet)
    assert (rollout.outcome, rollout.detail) == (Outcome.FAILED, "nothing was changed")
    assert fleet.machines == []


def test_a_rollout_without_an_end_is_overlong() -> None:
    engine, fleet = Player([call("run")] * 4), Fleet()
    rollout = run(engine, fleet)
    assert (rollout.outcome, rollout.reward) == (Outcome.OVERLONG, 0.0)
    assert rollout.detail == "more than 4 turns" and len(engine.requests) == 4
    assert engine.released == ["r1"] and fleet.machines[0].closed


def test_an_agent_that_lost_the_protocol_is_stopped_and_at_fault() -> None:
    nonsense = [*tokenizer().encode_text("hello"), template().end]
    lost = run(Player([nonsense, nonsense, nonsense]), FolderFleet())
    assert (lost.outcome, lost.reward, lost.counts["turns"]) == (Outcome.AGENT_FAULT, 0.0, 3)
    assert lost.detail == "3 malformed calls in a row"
    found_again = run(Player([nonsense, nonsense, fix_of(KATA), call("finish")]), FolderFleet())
    assert found_again.outcome is Outcome.SOLVED


def test_a_malformed_call_counts_as_an_error_and_the_rollout_goes_on() -> None:
    long = call("edit", "2", "1" * 50, "2")
    engine = Player([[*tokenizer().encode_text("hello"), template().end], long, call("view"), call("finish")])
    rollout = run(engine, Fleet())
    assert observations(rollout)[:2] == ["no tool", "call too long"]
    assert rollout.counts == {"turns": 4, "tool_errors": 2, "summaries": 0}
    assert rollout.outcome is Outcome.FAILED  # nothing was changed
    assert len(engine.written[1]) == ROOMY.max_action  # cut, and kept as it was sampled


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("x", "a", "b"), "bad line"),
        (("", "a", "b"), "bad line"),
        (("-1", "a", "b"), "bad line"),
        (("99", "a", "b"), "no line 99"),
        (("²", "a", "b"), "bad line"),
        (("1", "", "b"), "old text is empty"),
        (("1", "zzz", "b"), "old text not found in line 1"),
    ],
)
def test_an_edit_that_does_not_apply_is_answered(args: tuple[str, str, str], said: str) -> None:
    rollout = run(Player([call("edit", *args), call("finish")]), Fleet())
    assert observations(rollout) == [said]
    assert rollout.counts["tool_errors"] == 1


def test_the_file_is_shown_with_line_numbers() -> None:
    rollout = run(Player([call("view"), call("finish")]), Fleet(), AgentConfig(context=1024, max_observation=500))
    numbered = "\n".join(f"{n} {line}" for n, line in enumerate(KATA.source.splitlines(), 1))
    assert observations(rollout) == [numbered]


@pytest.mark.parametrize(
    ("status", "output", "said", "errors"),
    [
        (ExecStatus.OK, " ok\n", "ok", 0),
        (ExecStatus.ERROR, "f(1) gives 2, want 3\n", "f(1) gives 2, want 3", 0),
        (ExecStatus.OK, "", "no output", 0),
        (ExecStatus.TIMEOUT, "half a li", "stopped: timeout", 1),
        (ExecStatus.LIMIT, "half a li", "stopped: limit", 1),
    ],
)
def test_a_program_is_answered_with_what_it_printed(status: ExecStatus, output: str, said: str, errors: int) -> None:
    """A failing program is no error of the agent's; one that had to be stopped is."""
    rollout = run(Player([call("run"), call("finish")]), Fleet(output, status=status))
    assert observations(rollout) == [said]
    assert rollout.counts["tool_errors"] == errors


@pytest.mark.parametrize("count", [0, 1], ids=["at the first look", "at the end"])
def test_a_file_that_the_agent_broke_counts_against_the_agent(count: int) -> None:
    gone = WorkspaceError("machine file 'kata.py': missing")
    fleet = Fleet(errors={("read", n): gone for n in range(count, 9)})
    rollout = run(Player([call("run"), call("view"), call("finish")]), fleet)
    assert (rollout.outcome, rollout.reward, rollout.detail) == (Outcome.AGENT_FAULT, 0.0, str(gone))
    assert rollout.counts["tool_errors"] == 1 - count
    assert fleet.machines[0].closed


LOST = InfraError("machine: lost")
ANSWERS = [call("run"), fix_of(KATA), call("view"), call("finish")]  # a machine is made by the first run
TROUBLE = {
    "opening": (Fleet(errors={("open", 0): LOST}), ANSWERS),
    "reading": (Fleet(errors={("read", 1): LOST}), ANSWERS),
    "writing": (Fleet(errors={("write", 0): LOST}), ANSWERS),
    "running": (Fleet(errors={("exec", 0): LOST}), ANSWERS),
    "the last look": (Fleet(errors={("read", 2): LOST}), ANSWERS),
    "opening to grade": (Fleet(errors={("open", 1): LOST}), ANSWERS),
    "writing the tests": (Fleet(errors={("write", 1): LOST}), ANSWERS),
    "running the tests": (Fleet(errors={("exec", 1): LOST}), ANSWERS),
    "the first tokens": (Fleet(), [LOST]),
    "later tokens": (Fleet(), [ANSWERS[0], LOST]),
}


@pytest.mark.parametrize(("fleet", "answers"), TROUBLE.values(), ids=TROUBLE)
def test_fault_9_harness_failure_scored_as_zero(fleet: Fleet, answers: list[Any]) -> None:
    """Infrastructure trouble anywhere has no reward, whatever was reached before, and leaves nothing behind."""
    engine = Player(answers)
    rollout = run(engine, fleet)
    assert rollout.outcome is Outcome.INFRA_FAULT
    assert rollout.reward is None
    assert rollout.detail == str(LOST)
    assert engine.released == ["r1"]
    assert all(machine.closed for machine in fleet.machines)


def test_a_bug_is_raised_and_leaves_nothing_behind() -> None:
    engine, fleet = Player([call("run"), call("view")]), Fleet(errors={("read", 0): KeyError("a bug")})
    with pytest.raises(KeyError):
        run(engine, fleet)
    assert engine.released == ["r1"] and fleet.machines[0].closed


def test_every_token_keeps_its_origin_logprob_version_and_experts() -> None:
    engine = Player([call("view"), call("finish")])
    (segment,) = run(engine, Fleet()).segments
    prompt = [*template().task(KATA.prompt), *template().turn()]
    first = len(prompt)
    second = len(segment) - len(call("finish"))
    origins = [Origin.PROMPT] * first + [Origin.SAMPLED] * len(call("view"))
    origins += [Origin.OBSERVATION] * (second - len(origins)) + [Origin.SAMPLED] * len(call("finish"))
    assert segment.origin_T.tolist() == origins
    assert segment.ids_T.tolist()[:first] == prompt
    for position in segment.sampled_T.nonzero()[0]:
        assert segment.logprob_T[position] == pytest.approx(-(position + 1) / 1000)
    assert segment.routes_TLK[:, 0, 0].tolist() == [*range(len(segment) - 1), -1]
    assert [(span.start, span.end, span.version) for span in segment.spans] == [
        (first, first + len(call("view")), version(1)),
        (second, len(segment), version(2)),
    ]


def test_fault_12_same_text_other_tokens() -> None:
    """The policy spells an edit in bytes; the same text is other tokens when encoded. What was sampled is kept."""
    usual = fix_of(KATA)
    alphabet = {text_of([token]): token for token in range(17, 17 + 256)}
    spelt = [
        piece
        for token in usual
        for piece in ([token] if token < 17 else [alphabet[letter] for letter in text_of([token])])
    ]
    assert len(spelt) > len(usual) and text_of(spelt) == text_of(usual)
    engine = Player([spelt, call("finish")])
    rollout = run(engine, FolderFleet(), AgentConfig(context=1024, max_action=100))
    assert rollout.outcome is Outcome.SOLVED
    (segment,) = rollout.segments
    assert segment.ids_T[segment.sampled_T].tolist() == spelt + call("finish")
    assert engine.requests[1].ids_T.tolist()[: len(engine.requests[0].ids_T)] == engine.requests[0].ids_T.tolist()


def test_sampling_settings_are_the_same_in_every_request_but_the_seed() -> None:
    engine = Player([call("view"), call("view"), call("finish")])
    run(engine, Fleet())
    assert {(r.temperature, r.stop_id, r.session) for r in engine.requests} == {(0.7, template().end, "r1")}
    assert [r.seed for r in engine.requests] == [call_seed(5, n) for n in (1, 2, 3)]


seeds = st.integers(0, 2**32 - 1)
numbers = st.integers(0, 2**31 - 1)


@given(seeds, numbers, seeds, numbers)
def test_no_two_requests_share_a_seed(seed: int, number: int, other: int, other_number: int) -> None:
    assert 0 <= call_seed(seed, number) < 2**64
    same = (seed, number) == (other, other_number)
    assert (call_seed(seed, number) == call_seed(other, other_number)) is same


def test_the_seeds_of_one_rollout_are_all_different() -> None:
    assert len({call_seed(3, number) for number in range(100_000)}) == 100_000
