"""An `Engine` over batched exchanges with a service in another process.

Invariant: one exchange is in flight at a time; whatever was asked since the last one goes out with the next, so the
number of calls between processes does not grow with the number of rollouts.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from etude.inference.engine import Generation, Request
from etude.records import InfraError, UserError

Exchange = Callable[[Sequence[Request], Sequence[str]], Awaitable[Sequence[Any]]]


class EngineClient:
    """`exchange(requests, released)` returns the generations, and refusals, that are done since the last call."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._outgoing: list[Request] = []
        self._released: list[str] = []
        self._waiting: dict[str, asyncio.Future[Generation]] = {}
        self._pump: asyncio.Task[None] | None = None

    async def generate(self, request: Request) -> Generation:
        """See `Engine.generate`. One request of a session at a time."""
        if request.session in self._waiting:
            raise ValueError(f"session {request.session} has a request running already")
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting[request.session] = future
        self._outgoing.append(request)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return await future

    async def release(self, session: str) -> None:
        """See `Engine.release`. Goes out with the next exchange."""
        self._released.append(session)

    async def _run(self) -> None:
        try:
            while self._waiting:
                requests, self._outgoing = self._outgoing, []
                released, self._released = self._released, []
                for answer in await self._exchange(requests, released):
                    future = self._waiting.pop(answer.session, None)
                    if future is None or future.cancelled():  # asked before an exchange broke, or given up
                        continue
                    if isinstance(answer, Generation):
                        future.set_result(answer)
                    else:
                        future.set_exception((InfraError if answer.infra else UserError)(answer.reason))
        except Exception as error:
            broken = error if isinstance(error, InfraError) else InfraError(f"the engine is gone: {error}")
            for future in self._waiting.values():
                with contextlib.suppress(asyncio.InvalidStateError):
                    future.set_exception(broken)
            self._waiting.clear()
            self._outgoing.clear()
