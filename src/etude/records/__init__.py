"""The nouns everyone shares. Imports neither torch nor ray."""

from etude.records.atomic import directory_atomic, disk_errors, write_atomic
from etude.records.errors import InfraError, UserError
from etude.records.rollout import MISSING_ROUTE, Origin, Outcome, Rollout, Segment
from etude.records.task import Task
from etude.records.version import PolicyVersion, VersionSpan
from etude.records.wire import decode, encode

__all__ = [
    "MISSING_ROUTE",
    "InfraError",
    "Origin",
    "Outcome",
    "PolicyVersion",
    "Rollout",
    "Segment",
    "Task",
    "UserError",
    "VersionSpan",
    "decode",
    "directory_atomic",
    "disk_errors",
    "encode",
    "write_atomic",
]
