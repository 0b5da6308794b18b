"""The embedded engine behind asyncio, and the service that shares it and takes new weights while it serves.

Invariants:
* weights change only between two passes, after the replica has checked them; no request is dropped for it;
* a version is served only after the engine computed its digest and answered the canary prompt as the trainer did;
* each request is answered once, to the client that sent it.
"""

import asyncio
import contextlib
import functools
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from etude.inference.engine import Generation, Request
from etude.inference.local.canary import LENGTH, canary_logprobs
from etude.inference.local.engine import LocalEngine
from etude.records import InfraError, PolicyVersion, UserError
from etude.weights import Chain, Replica
from etude.weights.replica import Staged

CANARY_TOLERANCE = 1e-4  # equal code and equal bits give 0, and did in all 50 updates of a quickstart


class AsyncEngine:
    """An `Engine` for agents in the same process: drives a `LocalEngine` from one asyncio loop."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.gate = asyncio.Lock()  # held during a pass; whoever changes weights holds it too
        self._futures: dict[str, asyncio.Future[Generation]] = {}
        self._wake = asyncio.Event()
        self._trouble: InfraError | None = None
        self._loop = asyncio.create_task(self._serve())

    async def generate(self, request: Request) -> Generation:
        """See `Engine.generate`. One request of a session at a time."""
        return await self.submit(request)

    def submit(self, request: Request) -> asyncio.Future[Generation]:
        """Queue a request; the future ends with its generation, or with InfraError when the engine stops."""
        if self._trouble is not None:
            raise InfraError(str(self._trouble))
        if request.session in self._futures:
            raise UserError(f"session {request.session} has a request running already; wait for its answer")
        self.engine.submit(request)
        future = self._futures[request.session] = asyncio.get_running_loop().create_future()
        self._wake.set()
        return future

    async def release(self, session: str) -> None:
        """See `Engine.release`."""
        self.engine.release(session)

    async def close(self) -> None:
        """Stop serving; running requests fail."""
        self.stop(InfraError("the engine was closed"))
        await asyncio.wait([self._loop])

    def stop(self, trouble: InfraError) -> None:
        """Serve nothing from now on: what is running, and what comes later, ends with `trouble`."""
        if self._trouble is None:
            self._trouble = trouble
        self._loop.cancel()
        for future in self._futures.values():
            if not future.done():
                future.set_exception(self._trouble)

    async def _serve(self) -> None:
        try:
            while True:
                if not self.engine.busy:
                    self._wake.clear()
                    await self._wake.wait()
                async with self.gate:
                    done = self.engine.step()
                for generation in done:
                    future = self._futures.pop(generation.session)
                    if not future.done():  # a caller that was cancelled has cancelled its future
                        future.set_result(generation)
                await asyncio.sleep(0)  # let calls in between two passes
        except Exception as error:
            self.stop(InfraError(f"the engine broke: {error!r}"))
            raise


class Refused(msgspec.Struct, frozen=True):
    """A request that was not served. `infra`: it may be tried again; else it can never be served."""

    session: str
    reason: str
    infra: bool


class Acknowledgement(msgspec.Struct, frozen=True):
    """What an engine says after an update.

    version: with the digest it computed over its own memory.
    pause_s: seconds in which no token was sampled. prepare_s: fetching, checking and decoding, beside serving.
    canary_gap: largest difference to the trainer's canary logprobs.
    """

    version: PolicyVersion
    pause_s: float
    prepare_s: float
    canary_gap: float


class EngineService:
    """An engine with clients in other processes and a replica that keeps its weights on the chain."""

    def __init__(self, engine: LocalEngine, replica: Replica, chain: Chain) -> None:
        self.engine = AsyncEngine(engine)
        self.replica = replica
        self.chain = chain
        self._outbox: dict[str, list[Generation | Refused]] = defaultdict(list)
        self._news: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def exchange(
        self, client: str, requests: Sequence[Request], released: Sequence[str], wait_s: float
    ) -> list[Generation | Refused]:
        """Hand in requests and finished sessions, take what is done; waits up to `wait_s` for something to be done.

        One call carries many requests, so the cost of a call between processes is paid once for all of them.
        """
        for session in released:
            await self.engine.release(session)
        for request in requests:
            try:
                future = self.engine.submit(request)
            except (UserError, InfraError) as error:
                self._deliver(client, Refused(request.session, str(error), isinstance(error, InfraError)))
            else:
                future.add_done_callback(functools.partial(self._settle, client, request.session))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news[client].wait(), wait_s)
        self._news[client].clear()
        done, self._outbox[client] = self._outbox[client], []
        return done

    async def update(self, trainer_canary: Sequence[float]) -> Acknowledgement:
        """Move to the head of the chain. The pause covers the scatter, the digest and the canary, nothing else.

        Raises WeightsError, with the old weights in place and served, when the data does not match, and InfraError when
        the canary does not. After that, or when the old weights cannot be proven any more, the engine serves nothing:
        what it would compute has no version.
        """
        if len(trainer_canary) != LENGTH - 1:
            raise ValueError(f"canary: the trainer sent {len(trainer_canary)} logprobs, expected {LENGTH - 1}")
        started = time.perf_counter()
        staged = await asyncio.to_thread(self.replica.prepare, self.chain)
        prepared = time.perf_counter()
        async with self.engine.gate:
            paused = time.perf_counter()
            version = self._commit(staged)
            gap = self._canary_gap(version, trainer_canary)
            self.engine.engine.set_version(version)
            resumed = time.perf_counter()
        return Acknowledgement(version, resumed - paused, prepared - started, gap)

    def _commit(self, staged: Staged) -> PolicyVersion:
        try:
            return self.replica.commit(staged)
        except BaseException as error:
            if self.replica.version != self.engine.engine.version:  # rolling back did not restore what was served
                self.engine.stop(InfraError(f"the engine stopped, its weights are of no version: {error}"))
            raise

    def _canary_gap(self, version: PolicyVersion, trainer_canary: Sequence[float]) -> float:
        own_canary = canary_logprobs(self.engine.engine.model)
        gap = float(np.abs(np.subtract(own_canary, trainer_canary)).max())  # NaN wins a numpy max, not a built-in one
        if not gap <= CANARY_TOLERANCE:
            trouble = InfraError(
                f"version {version}: the canary prompt differs from the trainer's by {gap:.2g}; "
                "the engine does not compute with the weights it holds"
            )
            self.engine.stop(trouble)
            raise trouble
        return gap

    async def close(self) -> None:
        """Stop serving."""
        await self.engine.close()

    def _settle(self, client: str, session: str, future: asyncio.Future[Generation]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            self._deliver(client, Refused(session, str(error or "cancelled"), infra=True))
        else:
            self._deliver(client, future.result())

    def _deliver(self, client: str, answer: Generation | Refused) -> None:
        self._outbox[client].append(answer)
        self._news[client].set()
