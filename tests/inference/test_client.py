"""The client's half of an exchange: one in flight, and its troubles end where they belong."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from etude.inference import EngineClient, Finish, Generation, Request
from etude.inference.local import Refused
from etude.records import InfraError, UserError
from tests.inference.drive import ask, ids


def answer(request: Request) -> Generation:
    """An answer that says what was asked."""
    logprobs, routes = np.zeros(1, "float32"), np.zeros((1, 1, 1), "int16")
    return Generation(request.session, request.ids_T + 1, logprobs, routes, (), Finish.STOP)


class Peer:
    """The other side: records what came, and answers when told."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []
        self.replies: asyncio.Queue[list[object] | Exception] = asyncio.Queue()
        self.in_flight = 0

    async def exchange(self, requests: Sequence[Request], released: Sequence[str]) -> list[object]:
        self.in_flight += 1
        assert self.in_flight == 1, "two exchanges at once"
        self.calls.append(([request.session for request in requests], list(released)))
        try:
            reply = await self.replies.get()
        finally:
            self.in_flight -= 1
        if isinstance(reply, Exception):
            raise reply
        return reply


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_one_exchange_is_in_flight_and_carries_all_that_was_asked_since() -> None:
    async def scenario() -> None:
        peer = Peer()
        client = EngineClient(peer.exchange)
        requests = {name: ask(name, ids(3)) for name in "abcd"}
        tasks = {"a": asyncio.create_task(client.generate(requests["a"]))}
        await settle()
        for name in "bcd":
            tasks[name] = asyncio.create_task(client.generate(requests[name]))
        await client.release("old")
        await settle()
        assert peer.calls == [(["a"], [])]
        peer.replies.put_nowait([])
        await settle()
        assert peer.calls[1:] == [(["b", "c", "d"], ["old"])]
        peer.replies.put_nowait([answer(requests[name]) for name in "dacb"])
        found = {name: (await task).session for name, task in tasks.items()}
        assert found == {name: name for name in "abcd"}
        await settle()
        assert len(peer.calls) == 2, "nobody waits: nothing is asked"

    asyncio.run(scenario())


@pytest.mark.parametrize(("infra", "kind"), [(False, UserError), (True, InfraError)])
def test_a_refusal_is_the_right_kind_of_error_for_one_caller(infra: bool, kind: type[Exception]) -> None:
    async def scenario() -> None:
        peer = Peer()
        client = EngineClient(peer.exchange)
        tasks = [asyncio.create_task(client.generate(ask(name, ids(3)))) for name in "ab"]
        await settle()
        peer.replies.put_nowait([Refused("a", "too long", infra), answer(ask("b", ids(3)))])
        with pytest.raises(kind, match="too long"):
            await tasks[0]
        assert (await tasks[1]).session == "b"

    asyncio.run(scenario())


def test_a_broken_exchange_is_infra_error_for_all_and_the_client_goes_on() -> None:
    """Requests asked during the broken exchange are not sent later, and answers that come late wake nobody: both were
    seen to break every later request."""

    async def scenario() -> None:
        peer = Peer()
        client = EngineClient(peer.exchange)
        tasks = [asyncio.create_task(client.generate(ask("a", ids(3))))]
        await settle()
        tasks.append(asyncio.create_task(client.generate(ask("b", ids(3)))))
        await settle()
        peer.replies.put_nowait(ConnectionError("the actor died"))
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, InfraError)
            assert "the actor died" in str(result)
        later = asyncio.create_task(client.generate(ask("c", ids(3))))
        await settle()
        assert peer.calls[1:] == [(["c"], [])]
        peer.replies.put_nowait([answer(ask("a", ids(3))), answer(ask("c", ids(3)))])
        assert (await later).session == "c"

    asyncio.run(scenario())


def test_infra_error_keeps_its_own_words() -> None:
    async def scenario() -> None:
        peer = Peer()
        task = asyncio.create_task(EngineClient(peer.exchange).generate(ask("a", ids(3))))
        await settle()
        peer.replies.put_nowait(InfraError("pool lost"))
        with pytest.raises(InfraError, match=r"^pool lost$"):
            await task

    asyncio.run(scenario())


def test_a_caller_that_gives_up_disturbs_nobody() -> None:
    async def scenario() -> None:
        peer = Peer()
        client = EngineClient(peer.exchange)
        tasks = [asyncio.create_task(client.generate(ask(name, ids(3)))) for name in "ab"]
        await settle()
        tasks[0].cancel()
        await settle()
        peer.replies.put_nowait([answer(ask("a", ids(3)))])
        peer.replies.put_nowait([answer(ask("b", ids(3)))])
        assert (await tasks[1]).session == "b"

    asyncio.run(scenario())


def test_two_requests_of_one_session_at_once_are_refused_here() -> None:
    async def scenario() -> None:
        peer = Peer()
        client = EngineClient(peer.exchange)
        task = asyncio.create_task(client.generate(ask("a", ids(3))))
        await settle()
        with pytest.raises(ValueError, match="session a has a request running already"):
            await client.generate(ask("a", ids(4)))
        peer.replies.put_nowait([answer(ask("a", ids(3)))])
        assert (await task).ids_N.tolist() == (ids(3) + 1).tolist()

    asyncio.run(scenario())
