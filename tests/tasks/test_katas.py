"""What every kata keeps, over random indexes of every tier."""

import ast
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from etude.config.tasks import KatasConfig
from etude.records import UserError
from etude.tasks import apply_edit
from etude.tasks.katas import FaultKind, Kata, KataSource, Split, normalise, split_of
from etude.tasks.katas.evaluate import outcomes

TIERS = (1, 2, 3, 4)
SOURCES = {
    (tier, split): KataSource(KatasConfig(tiers=tuple(float(tier == other) for other in TIERS)), split)
    for tier in TIERS
    for split in Split
}
KATAS = st.builds(
    lambda tier, split, index: SOURCES[tier, split].kata(index),
    st.sampled_from(TIERS),
    st.sampled_from(Split),
    st.integers(0, 10**12),
)

PINNED = """\
f: x is a plus 6; return x plus 5
1 def f(a):
2     x = a + 9
3     return x + 5
line 2: 9 to 6
f(-7) gives 7, want 4"""


def body(source: str) -> str:
    return source.split("\n", 1)[1]


@pytest.fixture(scope="module")
def many() -> dict[tuple[int, Split], list[Kata]]:
    return {key: [source.kata(index) for index in range(300)] for key, source in SOURCES.items()}


@given(KATAS)
@settings(max_examples=150, deadline=None)
def test_the_fix_restores_the_solution_which_passes_and_the_faulty_file_does_not(kata):
    assert apply_edit(kata.source, *kata.fix) == kata.solution
    assert kata.passes(kata.solution)
    assert kata.examples_output(kata.solution) == "ok\n"
    assert not kata.passes(kata.source)
    assert kata.examples_output(kata.source) == kata.prompt.splitlines()[-len(kata.examples)] + "\n"


@given(KATAS)
@settings(max_examples=150, deadline=None)
def test_there_is_exactly_one_fault_in_the_line_that_meta_names(kata):
    pairs = list(zip(kata.source.splitlines(), kata.solution.splitlines(), strict=True))
    assert [number for number, (faulty, right) in enumerate(pairs, 1) if faulty != right] == [kata.fix.line]
    assert kata.task().meta["line"] == str(kata.fix.line)
    assert pairs[kata.fix.line - 1][0].count(kata.fix.old) == 1
    assert pairs[kata.fix.line - 1][1].count(kata.fix.new) == 1  # so the fix can be undone as cleanly


@given(KATAS)
@settings(max_examples=150, deadline=None)
def test_an_edit_carries_the_space_that_stands_before_its_text(kata):
    line = kata.source.splitlines()[kata.fix.line - 1]
    at = line.index(kata.fix.old)
    if not kata.fix.old.startswith(" "):
        assert line[at - 1] != " "
    assert kata.fix.old.startswith(" ") == kata.fix.new.startswith(" ")
    assert not kata.fix.old.startswith("  ")
    assert not kata.fix.old.endswith(" ") and not kata.fix.new.endswith(" ")


@given(KATAS)
@settings(max_examples=150, deadline=None)
def test_the_prompt_is_the_clauses_the_faulty_file_the_hint_and_the_failing_examples(kata):
    title, *rest = kata.prompt.split("\n")
    source = kata.source.splitlines()
    assert title.startswith("f: ")
    assert len(title.split("; ")) == len(source) - 1  # a clause for each line
    assert rest[: len(source)] == [f"{number} {line}" for number, line in enumerate(source, 1)]
    hints = {1: [f"line {kata.fix.line}:{kata.fix.old} to{kata.fix.new}"], 2: [f"line {kata.fix.line}:{kata.fix.new}"]}
    hint = hints.get(kata.tier, [])
    assert rest[len(source) : len(source) + len(hint)] == hint
    failures = rest[len(source) + len(hint) :]
    assert len(failures) == len(kata.examples)
    for call, text in zip(kata.examples, failures, strict=True):
        assert text.startswith(f"{call.text} ") and text.endswith(f", want {call.want}")


@given(KATAS)
@settings(max_examples=150, deadline=None)
def test_the_solution_is_a_short_loop_bounded_function_of_small_values(kata):
    tree = ast.parse(kata.solution)
    assert 1 <= len(kata.solution.splitlines()) - 1 <= 5
    assert not any(isinstance(node, ast.While | ast.Import | ast.Global) for node in ast.walk(tree))
    for call in kata.tests:
        for arg in call.args:
            numbers = arg if isinstance(arg, list) else [arg] if isinstance(arg, int) else []
            assert all(-9 <= number <= 9 for number in numbers)
            assert isinstance(arg, int) or len(arg) <= 4
        assert len(call.want) <= 16


@given(KATAS)
@settings(max_examples=150, deadline=None)
def test_tests_hold_the_examples_and_a_failing_call_that_is_not_shown(kata):
    assert kata.tests[: len(kata.examples)] == kata.examples
    assert 4 <= len(kata.tests) <= 8
    assert len({call.text for call in kata.tests}) == len(kata.tests)
    hidden = kata.tests[len(kata.examples) :]
    got = outcomes(kata.source, [call.args for call in hidden])
    assert got != [call.good for call in hidden]  # so a repair for the shown calls alone is not enough


@given(st.sampled_from(TIERS), st.sampled_from(Split), st.integers(0, 10**12))
@settings(max_examples=60, deadline=None)
def test_a_kata_depends_on_config_split_and_index_alone(tier, split, index):
    config = KatasConfig(seed=3, tiers=tuple(float(tier == other) for other in TIERS))
    first = KataSource(config, split)
    first.kata(index + 1)  # what was drawn before does not matter
    assert first.kata(index) == KataSource(config, split).kata(index)
    assert first.task(index).task_id == KataSource(config, split).task(index).task_id
    assert first.kata(index).tier == tier


def test_a_stream_is_the_same_on_every_machine():
    """Pinned by value: a change of the stream changes every held-out score, so it must be a decision."""
    kata = KataSource(KatasConfig(), Split.TRAIN).kata(0)
    assert kata.prompt == PINNED


def test_splits_share_no_normalised_body(many):
    bodies = {split: set() for split in Split}
    for (_, split), katas in many.items():
        bodies[split] |= {normalise(body(kata.solution)) for kata in katas}
    assert len(bodies[Split.TRAIN]) > 900 and len(bodies[Split.HELD_OUT]) > 500
    assert not bodies[Split.TRAIN] & bodies[Split.HELD_OUT]


def test_a_split_is_the_same_under_any_naming_and_seed():
    assert normalise("    x = a - b\n    return x.upper() + 'a'") == "    v0 = v1 - v2\n    return v0.upper() + 'a'"
    assert normalise("    y = k - n\n    return max(y, k)") == normalise("    x = a - b\n    return max(x, a)")
    assert normalise("    return a - b") != normalise("    return a - a")
    held_out = KataSource(KatasConfig(seed=99), Split.HELD_OUT)
    for index in range(50):
        assert split_of(body(held_out.kata(index).solution)) is Split.HELD_OUT


def test_about_fifteen_percent_of_bodies_are_held_out():
    bodies = [f"    return a + {number}" for number in range(4000)]
    share = sum(split_of(text) is Split.HELD_OUT for text in bodies) / len(bodies)
    assert 0.13 < share < 0.17


def test_tiers_differ_in_length_and_all_faults_occur(many):
    kinds = Counter()
    lengths, lines = {}, {}
    for tier in TIERS:
        katas = many[tier, Split.TRAIN]
        kinds.update(kata.fault for kata in katas)
        lengths[tier] = statistics.median(len(kata.prompt) for kata in katas)
        lines[tier] = statistics.mean(len(kata.solution.splitlines()) for kata in katas)
        assert max(len(kata.prompt) for kata in katas) <= 300
        assert max(count for _, count in Counter(kata.fault for kata in katas).items()) < len(katas) / 2
    assert set(kinds) == set(FaultKind)
    assert min(kinds.values()) > 25
    assert lengths[1] < 130 and lengths[1] < lengths[2] < lengths[3] < lengths[4] < 230
    assert lines[1] < lines[2] < lines[3] < lines[4]


def test_bodies_are_varied_in_every_tier(many):
    for tier in TIERS:
        assert len({normalise(body(kata.solution)) for kata in many[tier, Split.TRAIN]}) > 200


def test_part_of_tier_four_hides_the_clause_of_the_fault_and_shows_two_examples(many):
    katas = many[4, Split.TRAIN]
    vague = [kata for kata in katas if len(kata.examples) == 2]
    assert 0.25 < len(vague) / len(katas) < 0.55
    for kata in vague:
        clause = kata.prompt.split("\n")[0].removeprefix("f: ").split("; ")[kata.fix.line - 2]
        assert clause.endswith(" ?") or clause in ("change t", "grow out")


def test_the_mix_of_tiers_follows_its_weights():
    source = KataSource(KatasConfig(tiers=(3.0, 1.0, 0.0, 0.0)), Split.TRAIN)
    tiers = Counter(source.kata(index).tier for index in range(400))
    assert set(tiers) == {1, 2} and 260 < tiers[1] < 340


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="index must be 0 or more"):
        KataSource(KatasConfig(), Split.TRAIN).kata(-1)
    with pytest.raises(ValidationError, match="weights >= 0 with a positive sum"):
        KatasConfig(tiers=(0.0, 0.0, 0.0, 0.0))
