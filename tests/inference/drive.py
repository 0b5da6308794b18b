"""Drives engines in tests, and says slowly what they must answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from transformers import PreTrainedModel

from etude.config.inference import EngineConfig
from etude.inference import EngineLog, Generation, Request
from etude.inference.local import LocalEngine
from etude.models import RouterTap
from etude.records import PolicyVersion
from tests.models.tiny import some_ids

STOP = -1  # no token: nothing stops before max_tokens


def version(step: int) -> PolicyVersion:
    return PolicyVersion(step, f"{step:032x}")


def engine(model: PreTrainedModel, log: EngineLog | None = None, **limits: int) -> LocalEngine:
    """An engine of 8 slots and a context of 64 tokens, at version 0."""
    return LocalEngine(model, EngineConfig(**{"slots": 8, "context": 64, **limits}), version(0), log)


def ids(length: int, seed: int = 0) -> np.ndarray:
    """A prompt, int32."""
    return some_ids(length, seed=seed).numpy().astype(np.int32)


def ask(session: str, ids_T: np.ndarray, max_tokens: int = 5, **more: object) -> Request:
    """A request that runs to `max_tokens`."""
    return Request(**{"session": session, "ids_T": ids_T, "max_tokens": max_tokens, "stop_id": STOP, **more})


def run(local: LocalEngine, *requests: Request, after: Callable[[int], None] = lambda _: None) -> dict[str, Generation]:
    """Submit and step until idle; `after(n)` is called after step n (from 1). Each session must be answered once."""
    for request in requests:
        local.submit(request)
    answers: dict[str, Generation] = {}
    steps = 0
    while local.busy:
        for generation in local.step():
            assert generation.session not in answers
            answers[generation.session] = generation
        steps += 1
        assert steps < 500, "the engine does not come to an end"
        after(steps)
    assert answers.keys() >= {request.session for request in requests}
    return answers


class Expected:
    """A continuation by full forward passes without any cache, one for each token."""

    def __init__(self, model: PreTrainedModel, request: Request, context: int = 64) -> None:
        prompt, sampled, logprobs = request.ids_T.tolist(), [], []
        limit = min(request.max_tokens, context - len(prompt))
        uniforms = np.random.Generator(np.random.Philox(key=request.seed)).random(limit)
        for draw in uniforms:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + sampled])).logits[0, -1].double()
            logp = (logits / (request.temperature or 1.0)).log_softmax(-1).numpy()
            chosen = inverse(logp, float(draw)) if request.temperature else int(np.argmax(logp))
            sampled.append(chosen)
            logprobs.append(logp[chosen])
            if chosen == request.stop_id:
                break
        self.ids_N, self.logprobs_N = np.array(sampled), np.array(logprobs)
        with RouterTap(model).record() as routes, torch.no_grad():
            model(torch.tensor([(prompt + sampled)[:-1]]))
        self.routes_RLK = torch.stack(routes, 1).numpy() if routes else np.zeros((len(prompt + sampled) - 1, 0, 0))
        self.routes_RLK = self.routes_RLK[request.routes_from :]

    def matches(self, found: Generation, tolerance: float = 1e-5) -> None:
        """Fail, naming the part, unless `found` is this continuation. Within a row of routes order is free."""
        assert found.ids_N.tolist() == self.ids_N.tolist()
        np.testing.assert_allclose(found.logprobs_N, self.logprobs_N, rtol=0, atol=tolerance)
        assert found.routes_RLK.shape == self.routes_RLK.shape
        assert np.array_equal(np.sort(found.routes_RLK, -1), np.sort(self.routes_RLK, -1))
        assert (found.ids_N.dtype, found.logprobs_N.dtype, found.routes_RLK.dtype) == (np.int32, np.float32, np.int16)


def inverse(logp_V: np.ndarray, draw: float) -> int:
    """The first token at which the cumulative probability is above the draw."""
    total = 0.0
    for token, logp in enumerate(logp_V):
        total += np.exp(logp)
        if total > draw:
            return token
    return len(logp_V) - 1


def expect(model: PreTrainedModel, answers: dict[str, Generation], requests: Sequence[Request]) -> None:
    """Every answer is what full passes give."""
    for request in requests:
        Expected(model, request).matches(answers[request.session])


@contextmanager
def counted_tokens(model: PreTrainedModel) -> Iterator[list[int]]:
    """How many tokens, padding included, went through the model in each pass."""
    seen: list[int] = []
    handle = model.model.embed_tokens.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].numel()))
    try:
        yield seen
    finally:
        handle.remove()
