"""New weights while serving: proven before they are served, and nothing is dropped for it."""

import asyncio
import math
import time
from pathlib import Path

import pytest
import torch

from etude.inference import Generation
from etude.models import weights_of
from etude.records import InfraError, VersionSpan
from etude.weights import WeightsError, state_digest
from tests.inference.drive import Expected, ask, ids
from tests.inference.serve import Served
from tests.models.tiny import SHAPES, tiny


async def passes(served: Served, count: int) -> None:
    """Wait until the engine sampled `count` more tokens."""
    goal = served.local.sampled_tokens + count
    while served.local.sampled_tokens < goal:
        await asyncio.sleep(0)


@pytest.mark.parametrize("shape", SHAPES)
def test_requests_in_flight_finish_with_two_spans(shape: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        served = Served(tmp_path, tiny(shape))
        client, before = served.client(), served.local.version
        running = [asyncio.create_task(client.generate(ask(f"s{n}", ids(4 + n, seed=n), 50))) for n in range(3)]
        await passes(served, 9)
        report = served.learn()
        acknowledged = await served.service.update(served.canary())
        assert acknowledged.version == report.version == served.local.version != before
        assert acknowledged.version.digest == state_digest(weights_of(served.served)).hex()
        assert acknowledged.canary_gap == 0.0
        assert acknowledged.pause_s > 0 and acknowledged.prepare_s > 0
        for answer in await asyncio.gather(*running):
            first, second = answer.spans
            assert (first.version, second.version) == (before, report.version)
            assert 0 == first.start < first.end == second.start < second.end == len(answer.ids_N) == 50
        fresh = await client.generate(ask("fresh", ids(4), seed=1))
        assert fresh.spans == (VersionSpan(0, 5, report.version),)
        Expected(served.trainer, ask("fresh", ids(4), seed=1)).matches(fresh)
        await served.service.close()

    asyncio.run(scenario())


def test_many_updates_in_a_row_stay_on_the_chain(tmp_path: Path) -> None:
    async def scenario() -> None:
        served = Served(tmp_path)
        client = served.client()
        versions = [served.local.version]
        running = asyncio.create_task(client.generate(ask("a", ids(4), 58)))
        for _ in range(4):
            await passes(served, 5)
            served.learn()
            versions.append((await served.service.update(served.canary())).version)
        answer = await running
        assert [span.version for span in answer.spans] == versions
        assert len(set(versions)) == 5
        await served.service.close()

    asyncio.run(scenario())


def test_a_service_that_missed_versions_goes_to_the_head_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        served = Served(tmp_path)
        for _ in range(3):
            report = served.learn()
        assert (await served.service.update(served.canary())).version == report.version
        again = await served.service.update(served.canary())
        assert (again.version, again.canary_gap) == (report.version, 0.0)
        await served.service.close()

    asyncio.run(scenario())


async def refuses_to_serve(served: Served, running: asyncio.Task[Generation]) -> None:
    """Nothing is computed any more: neither for who waits nor for who comes."""
    with pytest.raises(InfraError):
        await running
    with pytest.raises(InfraError):
        await served.client("late").generate(ask("later", ids(4)))
    sampled = served.local.sampled_tokens
    await asyncio.sleep(0.01)
    assert served.local.sampled_tokens == sampled
    await served.service.close()


@pytest.mark.parametrize("wrong", [0.01, math.nan, math.inf])
@pytest.mark.parametrize("position", [0, 17, 30])
def test_a_wrong_canary_stops_the_engine(wrong: float, position: int, tmp_path: Path) -> None:
    """The new weights are in memory by then: serving on would give their tokens the old version. A NaN is no match,
    wherever it stands."""

    async def scenario() -> None:
        served = Served(tmp_path)
        running = asyncio.create_task(served.client().generate(ask("a", ids(4), 58)))
        await passes(served, 3)
        served.learn()
        canary = list(served.canary())
        canary[position] += wrong
        with pytest.raises(InfraError, match="canary"):
            await served.service.update(canary)
        await refuses_to_serve(served, running)

    asyncio.run(scenario())


def test_kind_kernel_copy_of_old_weights_stops_the_engine(tmp_path: Path) -> None:
    """Digest right, answers old."""

    async def scenario() -> None:
        served = Served(tmp_path)
        stale = served.served.lm_head.weight.detach().clone()
        served.served.lm_head.forward = lambda hidden: hidden @ stale.T
        running = asyncio.create_task(served.client().generate(ask("a", ids(4), 58)))
        await passes(served, 3)
        served.learn()
        with pytest.raises(InfraError, match="does not compute with the weights it holds"):
            await served.service.update(served.canary())
        assert state_digest(weights_of(served.served)) == state_digest(weights_of(served.trainer))
        await refuses_to_serve(served, running)

    asyncio.run(scenario())


async def serves_the_old_version(served: Served, running: asyncio.Task[Generation], old: torch.nn.Module) -> None:
    """All as before the update that failed."""
    answer = await running
    assert answer.spans == (VersionSpan(0, len(answer.ids_N), served.local.version),)
    Expected(old, ask("a", ids(4), 58)).matches(answer)
    assert served.local.version.digest == state_digest(weights_of(served.served)).hex()
    assert served.local.version.step == 0
    await served.service.close()


def test_a_canary_of_another_length_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        served = Served(tmp_path)
        running = asyncio.create_task(served.client().generate(ask("a", ids(4), 58)))
        await passes(served, 3)
        served.learn()
        with pytest.raises(ValueError, match="30 logprobs, expected 31"):
            await served.service.update(served.canary()[1:])
        await serves_the_old_version(served, running, tiny())

    asyncio.run(scenario())


def test_a_damaged_delta_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        served = Served(tmp_path)
        held = set((tmp_path / "blobs").iterdir())
        running = asyncio.create_task(served.client().generate(ask("a", ids(4), 58)))
        await passes(served, 3)
        served.learn()
        (delta,) = set((tmp_path / "blobs").iterdir()) - held
        damaged = bytearray(delta.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        delta.write_bytes(damaged)
        with pytest.raises(WeightsError):
            await served.service.update(served.canary())
        await serves_the_old_version(served, running, tiny())

    asyncio.run(scenario())


def test_memory_that_cannot_be_proven_any_more_stops_the_engine(tmp_path: Path) -> None:
    """Somebody else writes into live memory between preparing and committing: neither version can be proven."""

    async def scenario() -> None:
        served = Served(tmp_path)
        running = asyncio.create_task(served.client().generate(ask("a", ids(4), 58)))
        await passes(served, 3)
        served.learn()
        commit = served.replica.commit

        def damaged(staged):  # type: ignore[no-untyped-def]
            served.served.model.layers[1].mlp.gate.e_score_correction_bias[0] += 1  # in no delta: nothing restores it
            return commit(staged)

        served.replica.commit = damaged  # type: ignore[method-assign]
        with pytest.raises(WeightsError):
            await served.service.update(served.canary())
        await refuses_to_serve(served, running)

    asyncio.run(scenario())


def test_serving_goes_on_while_an_update_is_prepared(tmp_path: Path) -> None:
    """The pause is for the scatter and its proof: fetching and decoding happen beside serving."""

    async def scenario() -> None:
        served = Served(tmp_path)
        served.learn()
        prepare, sampled = served.replica.prepare, []

        def slow(chain):  # type: ignore[no-untyped-def]
            began = served.local.sampled_tokens
            deadline = time.monotonic() + 5
            while served.local.sampled_tokens < began + 5 and time.monotonic() < deadline:
                time.sleep(0.001)
            sampled.append(served.local.sampled_tokens - began)
            return prepare(chain)

        served.replica.prepare = slow  # type: ignore[method-assign]
        running = asyncio.create_task(served.client().generate(ask("a", ids(4), 58)))
        await served.service.update(served.canary())
        assert sampled[0] >= 5
        assert len((await running).spans) == 2
        await served.service.close()

    asyncio.run(scenario())


def test_two_updates_at_once_end_at_the_head(tmp_path: Path) -> None:
    """The second one was prepared from weights that are gone: it is refused, or it finds nothing left to do."""

    async def scenario() -> None:
        served = Served(tmp_path)
        report = served.learn()
        results = await asyncio.gather(
            served.service.update(served.canary()), served.service.update(served.canary()), return_exceptions=True
        )
        assert not isinstance(results[0], BaseException) or not isinstance(results[1], BaseException)
        assert served.local.version == report.version
        answer = await served.client().generate(ask("a", ids(4)))
        Expected(served.trainer, ask("a", ids(4))).matches(answer)
        await served.service.close()

    asyncio.run(scenario())
