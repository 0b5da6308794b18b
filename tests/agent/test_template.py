"""Text never becomes a marker, and a call that was written is the call that is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.agent import Malformed, Template, ToolCall
from etude.agent.template import ARITY, TOOLS
from etude.corpus.tokenizer import SPECIAL_TOKENS
from tests.agent.doubles import template, tokenizer

MARKERS = range(len(SPECIAL_TOKENS))

# Text that tries: names of markers, whole and in pieces, among anything else.
hostile = st.lists(st.one_of(st.sampled_from((*SPECIAL_TOKENS, "<|", "|>", "end", " ", "\n")), st.text())).map("".join)
calls = st.sampled_from(TOOLS).flatmap(
    lambda tool: st.tuples(*[hostile] * ARITY[tool]).map(lambda args: ToolCall(tool, args))
)


def markers(ids: list[int]) -> list[str]:
    return [SPECIAL_TOKENS[token] for token in ids if token in MARKERS]


@given(hostile)
def test_text_never_becomes_a_marker(text: str) -> None:
    t = template()
    assert markers(t.task(text)) == ["<|user|>", "<|end|>"]
    assert markers(t.observation(text, 10_000)) == ["<|observation|>", "<|end|>", "<|assistant|>"]
    assert markers(t.summary(text)) == ["<|end|>"]
    assert markers(t.carried(np.array(t.summary(text)))) == ["<|summary|>", "<|end|>"]
    assert markers(t.call(ToolCall("edit", (text, text, text)))) == ["<|edit|>", "<|arg|>", "<|arg|>", "<|end|>"]


@given(hostile)
def test_what_a_tool_says_can_be_read_back(text: str) -> None:
    ids = template().observation(text, 10_000)
    assert tokenizer().decode(ids[1:-2]) == text


@given(calls)
def test_a_call_that_was_written_is_the_call_that_is_read(call: ToolCall) -> None:
    assert template().parse(np.array(template().call(call), np.int32)) == call


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ([], "no tool"),
        (["<|end|>"], "no tool"),
        (["<|user|>", "<|end|>"], "no tool"),
        (["edit", "<|end|>"], "no tool"),
        (["<|finish|>"], "call too long"),
        (["<|edit|>", "2", "<|arg|>", "-"], "call too long"),
        (["<|edit|>", "2", "<|arg|>", "-", "<|end|>"], "edit takes 3 arguments"),
        (["<|edit|>", "<|end|>"], "edit takes 3 arguments"),
        (["<|edit|>", "<|arg|>", "<|arg|>", "<|arg|>", "<|end|>"], "edit takes 3 arguments"),
        (["<|finish|>", "now", "<|end|>"], "finish takes 0 arguments"),
        (["<|run|>", "<|arg|>", "<|end|>"], "run takes 0 arguments"),
    ],
)
def test_what_is_no_call_says_why(written: list[str], reason: str) -> None:
    ids = [
        token
        for piece in written
        for token in ([SPECIAL_TOKENS.index(piece)] if piece in SPECIAL_TOKENS else tokenizer().encode_text(piece))
    ]
    assert template().parse(np.array(ids, np.int32)) == Malformed(reason)


@given(st.lists(st.integers(0, 511), max_size=12))
def test_any_tokens_are_a_call_or_malformed(ids: list[int]) -> None:
    """The policy may sample anything, a marker within an argument too."""
    call = template().parse(np.array(ids, np.int32))
    if isinstance(call, ToolCall):
        assert len(call.args) == ARITY[call.tool] and ids[-1] == template().end


@pytest.mark.parametrize("limit", [1, 2, 5, 8, 9, 10, 11])
def test_a_long_observation_is_cut_in_the_middle_to_its_limit(limit: int) -> None:
    text = "1234567890"  # a token each
    ids = tokenizer().encode_text(text)
    assert len(ids) == 10
    shown = template().observation(text, limit)[1:-2]
    head = ids[: (limit + 1) // 2]
    assert shown == (ids if limit >= 10 else head + ids[10 - limit // 2 :])
    assert len(shown) == min(10, limit)


def test_fault_13_boundary_token_lost() -> None:
    """A window put together turn by turn has the tokens of one that is written in one go: none between the turns."""
    t, names = template(), Template(tokenizer())
    window = t.task("fix it") + t.turn() + t.call(ToolCall("run")) + t.observation("ok", 40)
    assert markers(window) == [
        "<|user|>", "<|end|>", "<|assistant|>", "<|run|>", "<|end|>", "<|observation|>", "<|end|>", "<|assistant|>",
    ]  # fmt: skip
    assert (
        tokenizer().decode(window)
        == "<|user|>fix it<|end|><|assistant|><|run|><|end|><|observation|>ok<|end|><|assistant|>"
    )
    assert names.query() == t.query() and markers(t.query()) == ["<|summarize|>", "<|summary|>"]


def test_a_carried_summary_ends_whether_it_was_cut_or_not() -> None:
    whole = np.array(template().summary("2 - >+"))
    assert template().carried(whole) == template().carried(whole[:-1])
    assert template().carried(whole)[-1] == template().end
