"""The nouns everyone shares. Imports neither torch nor ray.

The ledger is imported as `etude.records.ledger`: it needs pyarrow and DuckDB, which an engine or a machine's process
never does (170 of 190 ms of this import would be theirs).
"""

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
