"""Isolated computers, one for each rollout."""

from etude.machines.base import ExecResult, ExecStatus, Fleet, Machine, WorkspaceError
from etude.machines.lazy import LazyMachine
from etude.machines.process import ProcessFleet

__all__ = ["ExecResult", "ExecStatus", "Fleet", "LazyMachine", "Machine", "ProcessFleet", "WorkspaceError"]
