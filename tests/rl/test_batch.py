"""Every sampled token is in exactly one row, and sees there what it saw in its own segment."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import etude.rl.batch as batch_module
from etude.models import PADDING, packed_inputs
from etude.records import MISSING_ROUTE, Rollout, Segment
from etude.rl import MicroBatch, micro_batches
from tests.rl.play import rollout, segment


@st.composite
def batches(draw: st.DrawFn) -> list[Rollout]:
    """Groups whose rollouts share a prompt, with one to three segments each; some rows of routes are missing, and some
    rollouts read the prompt under other weights."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made: list[Rollout] = []
    for group in range(draw(st.integers(1, 3))):
        prompt = rng.integers(0, 96, rng.integers(1, 9)).astype(np.int32)
        for member in range(draw(st.integers(1, 4))):
            segments = []
            for number in range(rng.integers(1, 4)):
                body = "".join(rng.choice(["s", "ss", "ssso", "soo", "qss"], rng.integers(1, 4)))
                start = "p" * len(prompt) + ("cc" if number else "")
                made_one = segment(start + body, rng, prompt, step=int(rng.integers(0, 5)))
                if rng.random() < 0.3:
                    made_one.routes_TLK[rng.integers(0, len(made_one))] = MISSING_ROUTE
                if rng.random() < 0.3:
                    made_one.routes_TLK[rng.integers(0, len(made_one)), 1, 0] = MISSING_ROUTE  # partly missing
                segments.append(made_one)
            made.append(rollout(f"{group}-{member}", segments, float(rng.normal()), f"g{group}"))
    return made


def advantages_of(rollouts: list[Rollout]) -> dict[str, float]:
    return {one.rollout_id: float(n + 1) for n, one in enumerate(rollouts)}


Token = tuple[list[int], list[list[list[int]]], float, float, int]


def wanted_tokens(rollouts: list[Rollout]) -> list[Token]:
    """For each sampled token: ids up to it, routes up to it, its logprob, its advantage, its step."""
    tokens: list[Token] = []
    for one in rollouts:
        for seg in one.segments:
            for span in seg.spans:
                for t in range(span.start, span.end):
                    tokens.append(
                        (
                            seg.ids_T[: t + 1].tolist(), seg.routes_TLK[:t].tolist(), float(seg.logprob_T[t]),
                            advantages_of(rollouts)[one.rollout_id], span.version.step,
                        )
                    )  # fmt: skip
    return tokens


def found_tokens(batch: MicroBatch) -> list[Token]:
    """The same, read from a micro-batch: what a token sees is what the attention mask lets it see."""
    inputs = packed_inputs(batch.doc_BT, torch.float32, batch.trunk_B)
    tokens: list[Token] = []
    for n, (b, t) in enumerate(batch.sampled_BT.nonzero().tolist()):
        seen = (inputs["attention_mask"][b, 0, t] == 0).nonzero()[:, 0]
        assert inputs["position_ids"][b, seen].tolist() == list(range(len(seen)))
        assert seen[-1] == t
        tokens.append(
            (
                batch.ids_BT[b, seen].tolist(), batch.routes_BTLK[b, seen[:-1]].tolist(),
                float(batch.sampler_logprobs_N[n]), float(batch.advantages_N[n]), int(batch.steps_N[n]),
            )
        )  # fmt: skip
    return tokens


@given(batches(), st.integers(1, 200), st.sampled_from([1, 30, 512]))
@settings(max_examples=60, deadline=None)
def test_every_sampled_token_exactly_once_beside_what_is_its_own(
    rollouts: list[Rollout], micro_tokens: int, row_tokens: int
) -> None:
    """Kinds: row is a rollout, advantage placed by another row's mask, routes shifted, packing applied to tokens and
    not to routes, neighbour leak."""
    with patch.object(batch_module, "ROW_TOKENS", row_tokens):
        made = list(micro_batches(rollouts, advantages_of(rollouts), micro_tokens))
    assert sorted(token for batch in made for token in found_tokens(batch)) == sorted(wanted_tokens(rollouts))
    for batch in made:
        assert batch.ids_BT.numel() <= micro_tokens or len(batch.ids_BT) == 1


@given(batches(), st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_padding_is_nobodys(rollouts: list[Rollout], micro_tokens: int) -> None:
    """Kind: padding routed to expert 0 loads it, and looks like a captured row."""
    for batch in micro_batches(rollouts, advantages_of(rollouts), micro_tokens):
        padding = batch.doc_BT == PADDING
        assert not batch.sampled_BT[padding].any()
        assert (batch.routes_BTLK[padding] == MISSING_ROUTE).all()
        assert (batch.ids_BT[padding] == 0).all()
        assert (padding.int().diff(dim=1) >= 0).all(), "padding comes last"
        count = int(batch.sampled_BT.sum())
        for vector in (batch.sampler_logprobs_N, batch.advantages_N, batch.steps_N):
            assert vector.shape == (count,)
        assert torch.isfinite(batch.sampler_logprobs_N).all(), "the NaN of an unsampled token"


@given(batches(), st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_rows_of_routes_are_counted_over_segments(rollouts: list[Rollout], micro_tokens: int) -> None:
    """From the last sampled token on none is needed: no engine read what nobody spoke after. A shared prompt counts for
    each segment that needs it."""
    made = list(micro_batches(rollouts, advantages_of(rollouts), micro_tokens))
    needed = captured = 0
    for seg in (seg for one in rollouts for seg in one.segments):
        for row in seg.routes_TLK[: np.flatnonzero(seg.sampled_T)[-1]]:
            needed += 1
            captured += bool((row >= 0).all())
    assert sum(batch.needed_rows for batch in made) == needed
    assert sum(batch.captured_rows for batch in made) == captured


def group(routes_of_last: np.ndarray | None = None) -> list[Rollout]:
    rng, prompt = np.random.default_rng(0), np.arange(10, dtype=np.int32)
    segments: list[Segment] = [segment("p" * 10 + "sss", rng, prompt) for _ in range(3)]
    if routes_of_last is not None:
        segments[-1].routes_TLK[3] = routes_of_last
    return [rollout(f"r{n}", [one]) for n, one in enumerate(segments)]


def test_a_shared_prompt_is_computed_once() -> None:
    (batch,) = micro_batches(group(), advantages_of(group()), 1000)
    assert batch.ids_BT.shape == (1, 9 + 3 * 4), "9 tokens of trunk; its last token and 3 sampled ones a branch"
    assert batch.trunk_B.tolist() == [9]


def test_kind_a_prompt_read_under_two_versions_is_two_trunks() -> None:
    other = group(np.array([[4, 5], [5, 4]]))
    (batch,) = micro_batches(other, advantages_of(other), 1000)
    assert (batch.doc_BT != PADDING).sum(1).tolist() == [9 + 4, 9 + 2 * 4]


def test_kind_query_and_copied_tokens_are_not_trained_but_the_summary_is() -> None:
    """Segment 1 ends with a summary that the policy sampled; segment 2 starts with its copy."""
    rng = np.random.default_rng(0)
    first, second = segment("ppssoqsss", rng), segment("ppcccpss", rng)
    (batch,) = micro_batches([rollout("r", [first, second])], {"r": 1.0}, 1000)
    trained = sorted(batch.ids_BT[batch.sampled_BT].tolist())
    assert trained == sorted([*first.ids_T[[2, 3, 6, 7, 8]], *second.ids_T[[6, 7]]])


def test_routes_of_different_models_are_refused_with_both_shapes() -> None:
    """Kind: samples with and without routes in one pack. numpy would spread [1, 1] over [2, 2]."""
    rng = np.random.default_rng(0)
    one, other = segment("pps", rng), segment("ppss", rng, layers=3)
    with pytest.raises(ValueError, match=r"\[2, 2\], \[3, 2\]"):
        list(micro_batches([rollout("a", [one]), rollout("b", [other])], {"a": 1.0, "b": 1.0}, 1000))


def test_a_rollout_without_an_advantage_is_an_error() -> None:
    with pytest.raises(KeyError, match="a"):
        list(micro_batches([rollout("a", [segment("pps", np.random.default_rng(0))])], {}, 1000))


def test_nothing_gives_nothing() -> None:
    assert list(micro_batches([], {}, 1000)) == []
