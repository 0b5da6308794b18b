"""The process backend: namespaces of this computer's kernel."""

from etude.machines.process.fleet import ProcessFleet
from etude.machines.process.machine import ProcessMachine

__all__ = ["ProcessFleet", "ProcessMachine"]
