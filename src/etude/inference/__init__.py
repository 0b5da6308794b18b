"""Engines: the protocol that all speak, and the client side of it. The embedded engine is in `inference.local`."""

from etude.inference.client import EngineClient
from etude.inference.engine import Engine, EngineLog, Finish, Generation, Request

__all__ = ["Engine", "EngineClient", "EngineLog", "Finish", "Generation", "Request"]
