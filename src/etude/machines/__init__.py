"""Isolated computers, one for each rollout."""

from etude.machines.base import ExecResult, ExecStatus, Fleet, Machine, WorkspaceError
from etude.machines.process import ProcessFleet

__all__ = ["ExecResult", "ExecStatus", "Fleet", "Machine", "ProcessFleet", "WorkspaceError"]
