"""The embedded engine: continuous batching over unchanged `transformers` modules.

Invariants:
* every sampled token carries the logprob of the distribution it was drawn from, the experts of the pass that consumed
  each token, and the version whose weights drew it;
* weights change only between two passes; running requests go on with the keys and values they have (their later tokens
  carry the new version), and a *new* session never reuses rows of older weights;
* a request is admitted, finished and logged exactly once.

Memory: slots * context * (bytes per token of keys and values) plus 4 + 4 + 2 * L * K bytes per position.
"""

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
        self.sampled_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a `step` would do anything."""
        return bool(self._waiting or self._running)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises UserError when it cannot fit into the context at all."""
        if not 0 < len(request.ids_T) < self.config.context:
            raise UserError(
                f"request of {len(request.ids_T)} tokens: the engine's context holds {self.config.context} "
                "and at least one must be sampled; shorten the prompt or raise engine.context"
            )
        self._waiting.append(request)

    def release(self, session: str) -> None:
        """Forget a session that has no running request."""
        self._slots.drop(session)

    def set_version(self, version: PolicyVersion) -> None:
        """The weights were changed, between two steps, by a replica that checked them."""
        self.version = version
        for running in self._running:
            running.version_starts.append((running.sampled, version))

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Admit what fits (one prefill pass), sample one token for everything that runs, return what finished."""
        admitted = self._admit()
        done: list[Generation] = []
        for batch in (admitted, [running for running in self._running if running not in admitted]):
            if batch:
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

    def _admit(self) -> list[Running]:
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
            running = self._place(request, slot, key)
            widest = max(widest, running.length - running.cached)
            if admitted and widest * (len(admitted) + 1) > self.config.prefill_tokens:
                self._slots.rest(request.session)
                break
            self._waiting.popleft()
            if running.cached == 0:
                computing.add(key[1])
            admitted.append(running)
        self._waiting.extendleft(reversed(postponed))
        self._running.extend(admitted)
        return admitted

    def _place(self, request: Request, slot: int, key: tuple[PolicyVersion, bytes]) -> Running:
        slots, ids_T = self._slots, request.ids_T
        cached = slots.agreeing(slot, ids_T)
        if cached == 0 and (source := slots.with_prompt(key)) is not None and source != slot:
            cached = len(ids_T) - 1
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
        slots.rest(request.session)
        if self.log is not None:
            self.log.add(request.session, request.ids_T, generation.ids_N)
        return generation
