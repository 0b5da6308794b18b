"""Traces apply cleanly, are short, and are wrong in many different ways."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from etude.config.tasks import DemonstratorConfig, KatasConfig
from etude.tasks import apply_edit
from etude.tasks.katas import MAX_MOVES, Kata, KataSource, Move, Split, demonstrate

SOURCE = KataSource(KatasConfig(tiers=(1.0, 1.0, 1.0, 1.0)), Split.TRAIN)
SKILL = DemonstratorConfig()


def files(kata: Kata, moves: list[Move]) -> list[str]:
    """The file after every move; raises EditError where an edit does not apply."""
    text, seen = kata.source, []
    for move in moves:
        if move.tool == "edit":
            line, old, new = move.args
            text = apply_edit(text, int(line), old, new)
        seen.append(text)
    return seen


def fix(kata: Kata) -> Move:
    return Move("edit", (str(kata.fix.line), kata.fix.old, kata.fix.new))


def edits(moves: list[Move]) -> list[Move]:
    return [move for move in moves if move.tool == "edit"]


@given(st.integers(0, 10**9), st.integers(0, 10**9))
@settings(max_examples=200, deadline=None)
def test_a_trace_applies_cleanly_and_ends_with_finish(index, seed):
    kata = SOURCE.kata(index)
    moves = demonstrate(kata, random.Random(seed), SKILL)
    files(kata, moves)
    assert moves == demonstrate(kata, random.Random(seed), SKILL)
    tools = [move.tool for move in moves]
    assert len(tools) <= MAX_MOVES and tools[-1] == "finish" and tools.count("finish") == 1
    assert "view" not in tools[1:]
    assert tools.count("edit") in (1, 3)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
@settings(max_examples=200, deadline=None)
def test_a_retry_follows_a_failing_run_and_starts_by_undoing(index, seed):
    kata = SOURCE.kata(index)
    moves = demonstrate(kata, random.Random(seed), DemonstratorConfig(right=0.3, run=1.0, retry=1.0, view=0.5))
    seen = files(kata, moves)
    first = next(at for at, move in enumerate(moves) if move.tool == "edit")
    failed = kata.examples_output(seen[first + 1]) != "ok\n"
    assert moves[first + 1].tool == "run"
    assert (len(edits(moves)) == 3) == failed
    if failed:
        assert seen[first + 2] == kata.source
        assert edits(moves)[2] != edits(moves)[0]


def test_skill_is_what_the_config_says():
    rng = random.Random(1)
    katas = [SOURCE.kata(index) for index in range(800)]
    traces = [demonstrate(kata, rng, SKILL) for kata in katas]
    right = sum(edits(moves)[0] == fix(kata) for kata, moves in zip(katas, traces, strict=True)) / 800
    solved = sum(kata.passes(files(kata, moves)[-1]) for kata, moves in zip(katas, traces, strict=True)) / 800
    assert 0.34 < right < 0.46
    assert 0.42 < solved < 0.58  # with retries
    assert 0.06 < sum(moves[0].tool == "view" for moves in traces) / 800 < 0.14
    assert 0.64 < sum(any(move.tool == "run" for move in moves) for moves in traces) / 800 < 0.76


def test_a_perfect_demonstrator_solves_everything_and_a_hopeless_one_nearly_nothing():
    rng = random.Random(2)
    perfect, hopeless = DemonstratorConfig(right=1.0), DemonstratorConfig(right=0.0)
    solved = 0
    for index in range(150):
        kata = SOURCE.kata(index)
        assert kata.passes(files(kata, demonstrate(kata, rng, perfect))[-1])
        solved += kata.passes(files(kata, demonstrate(kata, rng, hopeless))[-1])
    assert solved < 15  # some wrong edits are right by another way, such as x + a for a + x


def test_no_wrong_edit_dominates():
    rng = random.Random(3)
    shares = []
    for index in range(40):
        kata = SOURCE.kata(index)
        wrong = Counter(edits(demonstrate(kata, rng, DemonstratorConfig(right=0.0)))[0] for _ in range(200))
        assert len(wrong) >= 5
        assert fix(kata) not in wrong
        shares.append(wrong.most_common(1)[0][1] / 200)
    assert sum(shares) / len(shares) < 0.3
