"""One file per command: what `etude corpus build`, `pretrain`, `rl` and `eval` read. `run` is the folder they share."""

from typing import Literal, Self

from pydantic import model_validator

from etude.config.agent import AgentConfig
from etude.config.base import Config
from etude.config.corpus import CorpusConfig
from etude.config.evaluate import EvaluateConfig
from etude.config.inference import EngineConfig
from etude.config.machines import MachinesConfig
from etude.config.pretrain import PretrainConfig
from etude.config.rl import RLConfig
from etude.config.runtime import RuntimeConfig
from etude.config.tasks import DemonstratorConfig, KatasConfig

DType = Literal["bfloat16", "float32"]


class CorpusJob(Config):
    """`etude corpus build`: writes RUN/corpus."""

    run: str
    """Run folder."""
    corpus: CorpusConfig
    """What is read and how it is cut."""
    katas: KatasConfig = KatasConfig()
    """Task family whose prompts the tokenizer also learns from."""


class PretrainJob(Config):
    """`etude pretrain`: reads RUN/corpus, writes RUN/pretrain."""

    run: str
    """Run folder."""
    pretrain: PretrainConfig
    """Model and phases."""
    katas: KatasConfig = KatasConfig()
    """Tasks that are demonstrated."""
    demonstrator: DemonstratorConfig = DemonstratorConfig()
    """How good the demonstrator is."""
    agent: AgentConfig = AgentConfig()
    """Budget of the harness; the same must be used in RL and evaluation."""


class RLJob(Config):
    """`etude rl`: reads RUN/pretrain/sft, writes RUN/rl."""

    run: str
    """Run folder."""
    model: str | None = None
    """Hugging Face folder to start from; None is RUN/pretrain/sft."""
    dtype: DType = "bfloat16"
    """Type of weights and activations in trainer and engine."""
    rl: RLConfig
    """Groups, loss and optimizer."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Actors and threads."""
    engine: EngineConfig = EngineConfig()
    """The embedded engine."""
    agent: AgentConfig = AgentConfig()
    """Budget of the harness."""
    machines: MachinesConfig = MachinesConfig()
    """Sandboxes."""
    katas: KatasConfig = KatasConfig()
    """Tasks."""

    @model_validator(mode="after")
    def _windows(self) -> Self:
        _check_windows(self.engine, self.agent)
        return self


class EvalJob(Config):
    """`etude eval`: measures checkpoints of RUN, writes RUN/eval."""

    run: str
    """Run folder."""
    dtype: DType = "bfloat16"
    """Type of weights and activations."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Tasks and sampling."""
    engine: EngineConfig = EngineConfig()
    """The embedded engine."""
    agent: AgentConfig = AgentConfig()
    """Budget of the harness."""
    machines: MachinesConfig = MachinesConfig()
    """Sandboxes."""
    katas: KatasConfig = KatasConfig()
    """Tasks."""

    @model_validator(mode="after")
    def _windows(self) -> Self:
        _check_windows(self.engine, self.agent)
        return self


def _check_windows(engine: EngineConfig, agent: AgentConfig) -> None:
    """A window that the agent fills must fit into the engine."""
    if engine.context < agent.context:
        raise ValueError(f"engine.context = {engine.context} is below agent.context = {agent.context}")
