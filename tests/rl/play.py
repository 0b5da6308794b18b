"""Rollouts to train on: sampled by the local engine, or made up."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from etude.records import MISSING_ROUTE, Origin, Outcome, PolicyVersion, Rollout, Segment, VersionSpan
from tests.inference.drive import ask, engine, ids, run

PARTS = {"p": Origin.PROMPT, "s": Origin.SAMPLED, "o": Origin.OBSERVATION, "q": Origin.QUERY, "c": Origin.COPIED}


def rollout(name: str, segments: Sequence[Segment], reward: float | None = 0.0, group: str = "g") -> Rollout:
    """A rollout with nothing but what training looks at."""
    outcome = Outcome.INFRA_FAULT if reward is None else Outcome.SOLVED if reward == 1 else Outcome.FAILED
    return Rollout(name, group, "task", 1, 0, tuple(segments), outcome, reward)


def segment(
    parts: str, rng: np.random.Generator, prompt: np.ndarray | None = None, step: int = 0, layers: int = 2
) -> Segment:
    """A made-up segment: one token for each letter of `parts` ("ppsso": p prompt, s sampled, o observation, q query,
    c copied); ids below 96, two of six experts a row, every sampled token with a logprob of its own.

    prompt: ids of the leading prompt tokens; their routes then depend on these ids alone.
    """
    length = len(parts)
    origin_T = np.array([PARTS[part] for part in parts], np.uint8)
    ids_T = rng.integers(0, 96, length).astype(np.int32)
    routes_TLK = rng.random((length, layers, 6)).argsort(-1)[..., :2].astype(np.int16)
    if prompt is not None:
        leading = len(parts) - len(parts.lstrip("p"))
        assert leading == len(prompt)
        shared = np.random.default_rng(prompt.tolist())
        ids_T[:leading] = prompt
        routes_TLK[:leading] = shared.random((leading, layers, 6)).argsort(-1)[..., :2]
    routes_TLK[-1] = MISSING_ROUTE
    sampled_T = origin_T == Origin.SAMPLED
    logprob_T = np.where(sampled_T, -rng.random(length) * 8, np.nan).astype(np.float32)
    return Segment(ids_T, origin_T, logprob_T, routes_TLK, spans(sampled_T, step)).check()


def spans(sampled_T: np.ndarray, step: int) -> tuple[VersionSpan, ...]:
    """One span for each run of sampled tokens, all of one version."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], sampled_T.astype(np.int8), [0]])))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return tuple(VersionSpan(start, end, PolicyVersion(step, f"{step:032x}")) for start, end in pairs)


def sampled_segments(
    model: PreTrainedModel, prompts: Sequence[np.ndarray], turns: int = 2, step: int = 0, temperature: float = 1.0
) -> list[Segment]:
    """What the engine samples for each prompt in `turns` turns of 4 tokens, with 2 observed tokens between them."""
    local = engine(model, slots=max(1, len(prompts)))
    texts = [prompt.tolist() for prompt in prompts]
    origins = [[Origin.PROMPT] * len(prompt) for prompt in prompts]
    logprobs = [[np.nan] * len(prompt) for prompt in prompts]
    routes: list[np.ndarray] = [np.zeros(0)] * len(prompts)
    for turn in range(turns):
        requests = [
            ask(f"s{n}", np.array(text, np.int32), 4, seed=100 * n + turn, temperature=temperature)
            for n, text in enumerate(texts)
        ]
        answers = run(local, *requests)
        for n in range(len(prompts)):
            answer = answers[f"s{n}"]
            texts[n] += answer.ids_N.tolist()
            origins[n] += [Origin.SAMPLED] * 4
            logprobs[n] += answer.logprobs_N.tolist()
            routes[n] = answer.routes_RLK
            if turn + 1 < turns:
                texts[n] += ids(2, seed=turn).tolist()
                origins[n] += [Origin.OBSERVATION] * 2
                logprobs[n] += [np.nan] * 2
    return [_segment(*parts, step) for parts in zip(texts, origins, logprobs, routes, strict=True)]


def _segment(text: list[int], origin: list[Origin], logprob: list[float], routes: np.ndarray, step: int) -> Segment:
    origin_T = np.array(origin, np.uint8)
    routes_TLK = np.full((len(text), *routes.shape[1:]), MISSING_ROUTE, np.int16)
    routes_TLK[:-1] = routes
    return Segment(
        np.array(text, np.int32), origin_T, np.array(logprob, np.float32), routes_TLK,
        spans(origin_T == Origin.SAMPLED, step),
    ).check()  # fmt: skip
