"""Many callers, one engine: each request is answered once, to who sent it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from etude.inference import Generation, Request
from etude.inference.local import AsyncEngine
from etude.records import InfraError, UserError
from tests.inference.drive import Expected, ask, engine, expect, ids, run
from tests.inference.serve import Served
from tests.models.tiny import tiny


def many(count: int, tag: str = "s") -> list[Request]:
    return [ask(f"{tag}{n}", ids(2 + n % 9, seed=n), 1 + n % 6, seed=n) for n in range(count)]


def test_concurrent_requests_are_each_answered_once_and_right() -> None:
    async def scenario() -> list[Generation]:
        served = AsyncEngine(engine(tiny()))
        answers = await asyncio.gather(*[served.generate(request) for request in many(30)])
        await served.close()
        return answers

    answers = asyncio.run(scenario())
    assert [answer.session for answer in answers] == [request.session for request in many(30)]
    expect(tiny(), {answer.session: answer for answer in answers}, many(30))


def test_the_engine_sleeps_and_wakes() -> None:
    async def scenario() -> None:
        served = AsyncEngine(engine(tiny()))
        for turn in range(3):
            await asyncio.sleep(0.01)
            answer = await asyncio.wait_for(served.generate(ask(f"s{turn}", ids(5), seed=turn)), 10)
            Expected(tiny(), ask("", ids(5), seed=turn)).matches(answer)
        await served.close()

    asyncio.run(scenario())


def test_a_refused_request_raises_to_its_caller_only() -> None:
    async def scenario() -> list[object]:
        served = AsyncEngine(engine(tiny()))
        requests = [ask("a", ids(5)), ask("bad", ids(5), 0), ask("b", ids(6, seed=1))]
        results = await asyncio.gather(*[served.generate(one) for one in requests], return_exceptions=True)
        await served.close()
        return results

    first, refused, second = asyncio.run(scenario())
    assert isinstance(refused, UserError)
    expect(tiny(), {"a": first, "b": second}, [ask("a", ids(5)), ask("b", ids(6, seed=1))])


def test_two_requests_of_one_session_at_once_are_refused() -> None:
    async def scenario() -> None:
        served = AsyncEngine(engine(tiny()))
        first = served.submit(ask("a", ids(5)))
        with pytest.raises(UserError, match="session a has a request running already"):
            served.submit(ask("a", ids(7)))
        Expected(tiny(), ask("a", ids(5))).matches(await first)
        Expected(tiny(), ask("a", ids(7))).matches(await served.generate(ask("a", ids(7))))
        await served.close()

    asyncio.run(scenario())


def test_a_caller_that_gives_up_disturbs_nobody() -> None:
    async def scenario() -> None:
        served = AsyncEngine(engine(tiny(), slots=1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(served.generate(ask("a", ids(5), 50)), 0.005)
        await served.release("a")
        answer = await served.generate(ask("b", ids(6, seed=1), seed=1))
        Expected(tiny(), ask("b", ids(6, seed=1), seed=1)).matches(answer)
        await served.close()

    asyncio.run(scenario())


def broken_after(local, passes: int):  # type: ignore[no-untyped-def]
    """Make pass number `passes` of an engine fail."""
    forward, count = local._forward, 0

    def fail(*arguments):  # type: ignore[no-untyped-def]
        nonlocal count
        count += 1
        if count >= passes:
            raise MemoryError("no memory for a pass")
        return forward(*arguments)

    local._forward = fail
    return local


def test_breakage_becomes_infra_error_for_all_who_wait_and_all_who_come() -> None:
    async def scenario() -> tuple[list[object], object]:
        served = AsyncEngine(broken_after(engine(tiny()), 3))
        results = await asyncio.gather(
            *[served.generate(ask(f"s{n}", ids(5, seed=n), 9)) for n in range(4)], return_exceptions=True
        )
        with pytest.raises(InfraError) as later:
            await served.generate(ask("later", ids(5)))
        await served.close()
        return results, later.value

    results, later = asyncio.run(scenario())
    assert all(isinstance(result, InfraError) for result in results)
    assert all("the engine broke: MemoryError" in str(result) for result in [*results, later])


def test_closing_ends_what_runs() -> None:
    async def scenario() -> object:
        served = AsyncEngine(engine(tiny()))
        running = served.submit(ask("a", ids(5), 50))
        await asyncio.sleep(0)
        await served.close()
        (result,) = await asyncio.gather(running, return_exceptions=True)
        return result

    result = asyncio.run(scenario())
    assert isinstance(result, InfraError)
    assert "closed" in str(result)


def test_clients_of_a_service_get_their_own_answers(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[Generation], Served]:
        served = Served(tmp_path)
        clients = [served.client(f"worker-{n}") for n in range(3)]
        calls = [client.generate(request) for n, client in enumerate(clients) for request in many(12, f"w{n}-")]
        answers = await asyncio.gather(*calls)
        await served.service.close()
        return answers, served

    answers, served = asyncio.run(scenario())
    requests = [request for n in range(3) for request in many(12, f"w{n}-")]
    assert [answer.session for answer in answers] == [request.session for request in requests]
    expect(tiny(), {answer.session: answer for answer in answers}, requests)
    assert served.exchanges < len(requests), "a call between processes carries many requests"


def test_the_log_equals_what_clients_sent_and_received(tmp_path: Path) -> None:
    """Promise 1, seen from both ends, over several turns of each session."""

    async def session(client, name: str, seed: int) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:  # type: ignore[no-untyped-def]
        seen, prompt = [], ids(4 + seed, seed=seed).tolist()
        for turn in range(3):
            answer = await client.generate(ask(name, np.array(prompt, np.int32), 3, seed=turn))
            seen.append((name, tuple(prompt), tuple(answer.ids_N.tolist())))
            prompt = [*prompt, *answer.ids_N.tolist(), 5, 6]
        await client.release(name)
        return seen

    async def scenario() -> tuple[list[list[tuple[str, tuple[int, ...], tuple[int, ...]]]], Served]:
        served = Served(tmp_path, slots=3)
        clients = [served.client(f"worker-{n}") for n in range(2)]
        calls = [session(clients[n % 2], f"s{n}", n) for n in range(6)]
        seen = await asyncio.gather(*calls)
        await served.service.close()
        return seen, served

    seen, served = asyncio.run(scenario())
    assert sorted(served.log.entries) == sorted(entry for part in seen for entry in part)
    assert len(served.log.entries) == 18


def test_a_refusal_crosses_the_service_to_its_caller_only(tmp_path: Path) -> None:
    async def scenario() -> list[object]:
        served = Served(tmp_path)
        client = served.client()
        requests = [ask("a", ids(5)), ask("bad", ids(64)), ask("b", ids(6, seed=1))]
        results = await asyncio.gather(*[client.generate(one) for one in requests], return_exceptions=True)
        await served.service.close()
        return results

    first, refused, second = asyncio.run(scenario())
    assert isinstance(refused, UserError)
    assert "the engine's context holds 64" in str(refused)
    expect(tiny(), {"a": first, "b": second}, [ask("a", ids(5)), ask("b", ids(6, seed=1))])


def test_a_session_that_another_client_uses_is_refused_to_the_second(tmp_path: Path) -> None:
    async def scenario() -> list[object]:
        served = Served(tmp_path)
        one, two = served.client("one"), served.client("two")
        results = await asyncio.gather(
            one.generate(ask("same", ids(5), 9)),
            two.generate(ask("same", ids(5), 9)),
            two.generate(ask("other", ids(6, seed=1))),
            return_exceptions=True,
        )
        await served.service.close()
        return results

    first, second, other = asyncio.run(scenario())
    assert isinstance(second, UserError)
    expect(tiny(), {"same": first, "other": other}, [ask("same", ids(5), 9), ask("other", ids(6, seed=1))])


def test_breakage_reaches_every_client(tmp_path: Path) -> None:
    async def scenario() -> list[object]:
        served = Served(tmp_path)
        broken_after(served.local, 2)
        clients = [served.client("one"), served.client("two")]
        calls = [clients[n % 2].generate(ask(f"s{n}", ids(5, seed=n), 9)) for n in range(4)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        results += await asyncio.gather(clients[0].generate(ask("later", ids(5))), return_exceptions=True)
        await served.service.close()
        return results

    results = asyncio.run(scenario())
    assert len(results) == 5
    assert all(isinstance(result, InfraError) and "the engine broke" in str(result) for result in results)


def test_an_exchange_with_nothing_to_say_returns_in_time(tmp_path: Path) -> None:
    async def scenario() -> list[object]:
        served = Served(tmp_path)
        answers = await asyncio.wait_for(served.service.exchange("idle", [], [], 0.01), 5)
        await served.service.close()
        return answers

    assert asyncio.run(scenario()) == []


def test_a_released_session_frees_its_slot_through_the_service(tmp_path: Path) -> None:
    async def scenario() -> None:
        served = Served(tmp_path, slots=1)
        client = served.client()
        await client.generate(ask("a", ids(5)))
        await client.release("a")
        await client.generate(ask("b", ids(5, seed=1)))
        assert run(served.local, ask("b", ids(5, seed=1)))  # the same engine, driven by hand
        await served.service.close()

    asyncio.run(scenario())
