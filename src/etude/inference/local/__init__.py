"""The embedded engine in PyTorch."""

from etude.inference.local.canary import canary_logprobs
from etude.inference.local.engine import LocalEngine
from etude.inference.local.serving import Acknowledgement, AsyncEngine, EngineService, Refused

__all__ = ["Acknowledgement", "AsyncEngine", "EngineService", "LocalEngine", "Refused", "canary_logprobs"]
