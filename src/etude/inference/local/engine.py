"""The embedded engine: continuous batching over unchanged `transformers` modules.

Invariants:
* every sampled token carries the logprob of the distribution it was drawn from, the experts of the pass that consumed
  each token, and the version whose weights drew it;
* weights change only between two passes; running requests go on with the keys and values they have (their later tokens
  carry the new version), and a *new* session never reuses rows of older weights;
* a request is admitted, finished and logged exactly once.

Memory: slots * context * (bytes per token of keys and values) plus 4 + 4 + 2 * L * K bytes per position.
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from etude.config.inference import EngineConfig
from etude.inference.engine import EngineLog, Finish, Generation, Request
from etude.inference.local.cache import SlotCache
from etude.inference.local.latent import absorbed
from etude.inference.local.sampling import sample
from etude.inference.local.sequence import Running, Slots
from etude.models import RouterTap
from etude.records import PolicyVersion, UserError

SHORT = 16  # tokens; most of the harness's answers to a tool call are shorter


class LocalEngine:
    """Call `submit`, then `step` until it returns the generation. Not thread-safe: one owner drives it."""

    def __init__(
        self, model: PreTrainedModel, config: EngineConfig, version: PolicyVersion, log: EngineLog | None = None
    ) -> None:
        self.model = model.eval()
        self.config = config
        self.version = version
        self.log = log
        self.tap = RouterTap(model)
        self._slots = Slots(config.slots, config.context, self.tap.n_layers, self.tap.top_k)
        self._cache = SlotCache(config.slots, config.context)
        self._waiting: deque[Request] = deque()
        self._running: list[Running] = []
        self._released: set[str] = set()  # sessions that end with the request that they still have
        self.sampled_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a `step` would do anything."""
        return bool(self._waiting or self._running)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises UserError, and queues nothing, when it can never be served."""
        _check(request, self.config.context, self.model.config.vocab_size)
        self._waiting.append(request)

    def release(self, session: str) -> None:
        """Forget a session: now, or when the request that it still has is finished; till then its slot is in use."""
        if any(request.session == session for request in (*self._waiting, *(r.request for r in self._running))):
            self._released.add(session)
        else:
            self._slots.drop(session)

    def set_version(self, version: PolicyVersion) -> None:
        """The weights were changed, between two steps, by a replica that checked them."""
        self.version = version
        for running in self._running:
            running.version_starts.append((running.sampled, version))

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Admit what fits, sample one token for everything that runs, return what finished.

        Rows of similar width share a pass: those that decode, those that read a tool's answer, those that read a
        prompt.
        In one padded pass 70 % of the tokens would be padding.
        """
        self._admit()
        done: list[Generation] = []
        for batch in _by_width(self._running):
            self._forward_and_sample(batch)
        still = []
        for running in self._running:
            finish = self._finish_of(running)
            if finish is None:
                still.append(running)
            else:
                done.append(self._finished(running, finish))
        self._running = still
        return done

    def _admit(self) -> None:
        """Take waiting requests, oldest first, while slots last and the padded pass stays within its budget.

        Equal prompts (a group's rollouts) are computed once: the others wait one step and copy the rows.
        """
        admitted: list[Running] = []
        computing: set[bytes] = set()
        postponed: list[Request] = []
        widest = 0
        while self._waiting:
            request = self._waiting[0]
            key = (self.version, request.ids_T.tobytes())
            if key[1] in computing:
                postponed.append(self._waiting.popleft())
                continue
            slot = self._slots.take(request.session)
            if slot is None:
                break
            cached, source = self._reusable(request.ids_T, slot, key)
            widest = max(widest, len(request.ids_T) - cached)
            if admitted and widest * (len(admitted) + 1) > self.config.prefill_tokens:
                self._slots.rest(request.session)
                break
            self._waiting.popleft()
            if cached == 0:
                computing.add(key[1])
            admitted.append(self._place(request, slot, key, cached, source))
        self._waiting.extendleft(reversed(postponed))
        self._running.extend(admitted)

    def _reusable(self, ids_T: np.ndarray, slot: int, key: tuple[PolicyVersion, bytes]) -> tuple[int, int]:
        """How many leading rows need no computing, and whose they are: the session's own, or an equal prompt's."""
        own = self._slots.agreeing(slot, ids_T)
        source = self._slots.with_prompt(key) if own == 0 else None
        return (own, slot) if source is None else (len(ids_T) - 1, source)

    def _place(
        self, request: Request, slot: int, key: tuple[PolicyVersion, bytes], cached: int, source: int
    ) -> Running:
        slots, ids_T = self._slots, request.ids_T
        slots.overwrite(slot, cached if source == slot else 0)
        if source != slot:
            self._cache.copy(source, slot, cached)
            slots.routes_SCLK[slot, :cached] = slots.routes_SCLK[source, :cached]
        slots.ids_SC[slot, : len(ids_T)] = ids_T
        slots.cached_S[slot] = cached
        if cached == 0:
            slots.set_prompt(slot, key)
        limit = min(request.max_tokens, self.config.context - len(ids_T))
        uniforms = np.random.Generator(np.random.Philox(key=request.seed)).random(limit)
        return Running(request, slot, len(ids_T), cached, uniforms, [(0, self.version)])

    def _forward_and_sample(self, batch: Sequence[Running]) -> None:
        slots = self._slots
        slots_B = np.array([r.slot for r in batch])
        length_B = np.array([r.length for r in batch])
        cached_B = np.array([r.cached for r in batch])
        logits_BV, routes_BQLK = self._forward(slots_B, cached_B, length_B - cached_B)
        for b, running in enumerate(batch):
            rows = length_B[b] - cached_B[b]
            slots.routes_SCLK[running.slot, cached_B[b] : length_B[b]] = routes_BQLK[b, :rows]
        temperature_B = torch.tensor([r.request.temperature for r in batch])
        uniform_B = torch.from_numpy(np.array([r.uniforms[r.sampled] for r in batch]))
        ids_B, logprobs_B = sample(logits_BV, temperature_B, uniform_B)
        slots.ids_SC[slots_B, np.minimum(length_B, self.config.context - 1)] = ids_B.numpy()
        slots.logprobs_SC[slots_B, np.minimum(length_B, self.config.context - 1)] = logprobs_B.numpy()
        slots.cached_S[slots_B] = length_B
        for running in batch:
            running.cached = running.length
            running.length += 1
        self.sampled_tokens += len(batch)

    def _forward(self, slots_B: np.ndarray, start_B: np.ndarray, new_B: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """One pass over `new_B[b]` tokens of each row from position `start_B[b]` on: last logits [B, V], routes.

        Rows are padded to the longest; a padding token writes beyond its session's length, where nothing reads.
        """
        width = int(new_B.max())
        positions_BQ = np.minimum(start_B[:, None] + np.arange(width), self.config.context - 1)
        ids_BQ = torch.from_numpy(self._slots.ids_SC[slots_B[:, None], positions_BQ]).long()
        positions = torch.from_numpy(positions_BQ)
        self._cache.aim(torch.from_numpy(slots_B), positions)
        visible = torch.arange(int(positions.max()) + 1)[None, None, :] <= positions[:, :, None]
        mask = torch.zeros(visible.shape, dtype=self.model.dtype)
        mask = mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)[:, None]
        with absorbed(self.model), self.tap.record() as routes:
            hidden_BQD = self.model.model(
                input_ids=ids_BQ, position_ids=positions, attention_mask=mask, past_key_values=self._cache
            ).last_hidden_state
        last_BD = hidden_BQD[torch.arange(len(slots_B)), torch.from_numpy(new_B - 1)]
        stacked = torch.stack(routes, dim=1) if routes else torch.zeros(ids_BQ.numel(), 0, 0)
        routes_BQLK = stacked.view(*ids_BQ.shape, self.tap.n_layers, self.tap.top_k).to(torch.int16).numpy()
        return self.model.lm_head(last_BD), routes_BQLK

    def _finish_of(self, running: Running) -> Finish | None:
        if self._slots.ids_SC[running.slot, running.length - 1] == running.request.stop_id:
            return Finish.STOP
        return Finish.LENGTH if running.sampled >= len(running.uniforms) else None

    def _finished(self, running: Running, finish: Finish) -> Generation:
        request, slots, slot = running.request, self._slots, running.slot
        prompt, end = len(request.ids_T), running.length
        generation = Generation(
            session=request.session,
            ids_N=slots.ids_SC[slot, prompt:end].copy(),
            logprobs_N=slots.logprobs_SC[slot, prompt:end].copy(),
            routes_RLK=slots.routes_SCLK[slot, request.routes_from : end - 1].copy(),
            spans=running.spans(),
            finish=finish,
        )
        if request.session in self._released:
            self._released.remove(request.session)
            slots.drop(request.session)
        else:
            slots.rest(request.session)
        if self.log is not None:
            self.log.add(request.session, request.ids_T, generation.ids_N)
        return generation


def _check(request: Request, context: int, vocab_size: int) -> None:
    """Refuse what would break a pass that other requests share. Raises UserError."""
    ids_T = request.ids_T
    if ids_T.dtype != np.int32 or ids_T.ndim != 1:
        raise UserError(f"session {request.session}: ids must be int32 [T], got {ids_T.dtype} {list(ids_T.shape)}")
    if not 0 < len(ids_T) < context:
        raise UserError(
            f"session {request.session}: request of {len(ids_T)} tokens, but the engine's context holds {context} "
            "and at least one must be sampled; shorten the prompt or raise engine.context"
        )
    if ids_T.min() < 0 or ids_T.max() >= vocab_size:
        raise UserError(
            f"session {request.session}: token ids from {ids_T.min()} to {ids_T.max()}, "
            f"but the model's vocabulary is 0 to {vocab_size - 1}; tokenizer and model do not belong together"
        )
    limits = (
        ("max_tokens", request.max_tokens, 1, math.inf),
        ("temperature", request.temperature, 0.0, math.inf),
        ("seed", request.seed, 0, 1 << 64),
        ("routes_from", request.routes_from, 0, len(ids_T) + 1),
    )
    for name, value, least, end in limits:
        if not least <= value < end:
            raise UserError(f"session {request.session}: {name} is {value}, expected {least} <= {name} < {end}")


def _by_width(running: Sequence[Running]) -> list[list[Running]]:
    """Rows by how many tokens their next pass reads: one, at most `SHORT`, more. Empty classes are left out."""
    classes: tuple[list[Running], ...] = ([], [], [])
    for row in running:
        new = row.length - row.cached
        classes[0 if new == 1 else 1 if new <= SHORT else 2].append(row)
    return [rows for rows in classes if rows]
