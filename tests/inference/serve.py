"""A service with a real chain, as a run has it, in one process."""

import copy
from pathlib import Path

from transformers import PreTrainedModel

from etude.inference import EngineClient, EngineLog, Request
from etude.inference.local import EngineService, LocalEngine, canary_logprobs
from etude.models import weights_of
from etude.weights import Chain, Publisher, PublishReport, Replica
from tests.inference.drive import engine
from tests.models.tiny import perturb, tiny


class Served:
    """A trainer that publishes to a chain in `folder`, and an engine that follows it. Make it inside a running loop."""

    def __init__(self, folder: Path, model: PreTrainedModel | None = None, **limits: int) -> None:
        self.trainer = model or tiny()
        self.served = copy.deepcopy(self.trainer)
        self.chain = Chain(str(folder))
        self.publisher = Publisher.resume(self.chain, weights_of(self.trainer), 0)
        self.replica = Replica(weights_of(self.served), None)
        self.log = EngineLog()
        version = self.replica.commit(self.replica.prepare(self.chain))
        self.local: LocalEngine = engine(self.served, self.log, **limits)
        self.local.set_version(version)
        self.service = EngineService(self.local, self.replica, self.chain)
        self.step = 0
        self.exchanges = 0

    def client(self, name: str = "worker") -> EngineClient:
        """A client that talks to the service as a process of its own would."""

        async def exchange(requests: list[Request], released: list[str]) -> list[object]:
            self.exchanges += 1
            return await self.service.exchange(name, requests, released, 0.2)

        return EngineClient(exchange)

    def learn(self) -> PublishReport:
        """One step of the trainer, published."""
        self.step += 1
        perturb(self.trainer, seed=self.step)
        return self.publisher.publish(weights_of(self.trainer), self.step)

    def canary(self) -> tuple[float, ...]:
        """What the trainer's weights answer."""
        return canary_logprobs(self.trainer)
