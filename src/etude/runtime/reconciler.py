"""Which groups run, which wait, which are trained: the account of every rollout. Plain Python, no Ray, no clock.

Invariants:
* every group that was admitted is settled exactly once: trained, dropped with a reason, or run again after
  infrastructure trouble; `finished`, `ready` (what is too old) and `take_batch` are the only ways out;
* a group is admitted only if all its rollouts fit under the staleness bound
      (version + O + 1) * B - (accepted + reserved) >= G
  B rollouts of a step, O allowed lag, accepted = rollouts in finished batches and in the buffer, reserved = running;
* the position in the task stream is the set of settled groups, not a high-water mark: a slow group is never skipped and
  a dropped one never pins the position.

Source of the rule: AReaL (arXiv 2505.24298) and the Fireworks cookbook's asynchronous recipe.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from etude.config.rl import RLConfig
from etude.records import Outcome, Rollout, UserError
from etude.records.ledger import Disposition, LedgerEntry
from etude.rl import group_advantages, has_gradient


@dataclass(frozen=True)
class Batch:
    """Whole groups for one optimizer step. Advantages by rollout id."""

    rollouts: list[Rollout]
    advantages: dict[str, float]


@dataclass
class Cursor:
    """Position in the task stream: all groups below `low`, and `above` it those that are settled out of order."""

    low: int = 0
    above: set[int] = field(default_factory=set)

    def settle(self, group: int) -> None:
        """Mark a group as done with; raises ValueError when it already was."""
        if group < self.low or group in self.above:
            raise ValueError(f"group {group} is settled twice")
        self.above.add(group)
        while self.low in self.above:
            self.above.remove(self.low)
            self.low += 1

    def __contains__(self, group: int) -> bool:
        return group < self.low or group in self.above


class Reconciler:
    """Admits groups, takes their results, makes batches."""

    def __init__(self, config: RLConfig, max_in_flight: int) -> None:
        if max_in_flight < config.group_size:
            raise UserError(
                f"runtime.max_in_flight = {max_in_flight} holds no group of rl.group_size = {config.group_size}; "
                "raise the one or lower the other"
            )
        self.config = config
        self.max_in_flight = max_in_flight
        self.version = 0
        self.cursor = Cursor()
        self.settled: list[LedgerEntry] = []
        self._accepted = 0
        self._running: dict[int, int] = {}  # group -> attempt
        self._again: list[tuple[int, int]] = []
        self._buffer: OrderedDict[int, list[Rollout]] = OrderedDict()
        self._next = 0

    @property
    def batch_size(self) -> int:
        """B: rollouts of one step."""
        return self.config.group_size * self.config.groups_per_step

    def capacity(self) -> int:
        """How many more rollouts may be admitted now."""
        reserved = len(self._running) * self.config.group_size
        staleness = (self.version + self.config.max_staleness + 1) * self.batch_size - (self._accepted + reserved)
        return min(staleness, self.max_in_flight - reserved)

    def admit(self) -> list[tuple[int, int]]:
        """(group, attempt) to start now: first those to run again, then the next of the stream."""
        started = []
        while self.capacity() >= self.config.group_size:
            group, attempt = self._again.pop(0) if self._again else (self._fresh(), 0)
            self._running[group] = attempt
            started.append((group, attempt))
        return started

    def finished(self, group: int, rollouts: Sequence[Rollout]) -> None:
        """A running group came back. Infrastructure faults send the whole group round again, and are in the account.

        Raises ValueError for a group that is not running or has another size than G.
        """
        if group not in self._running:
            raise ValueError(f"group {group} came back but is not running")
        if len(rollouts) != self.config.group_size:
            raise ValueError(
                f"group {group} came back with {len(rollouts)} rollouts, expected {self.config.group_size}"
            )
        attempt = self._running.pop(group)
        if any(rollout.reward is None for rollout in rollouts):
            self._again.append((group, attempt + 1))
            for rollout in rollouts:
                broken = rollout.outcome is not Outcome.ABORTED
                self._settle_rollout(rollout, Disposition.INFRA if broken else Disposition.ABORTED)
        elif not has_gradient(rollouts) and not self.config.shuffle_rewards:
            self._drop(group, rollouts, Disposition.NO_GRADIENT)
        else:
            self._accepted += len(rollouts)
            self._buffer[group] = list(rollouts)

    def lost(self, group: int) -> None:
        """The group did not come back in time, or its worker died: run it again."""
        self._again.append((group, self._running.pop(group) + 1))

    def ready(self) -> bool:
        """Whether a whole batch is there, after dropping what has become too old."""
        self._drop_stale()
        return len(self._buffer) >= self.config.groups_per_step

    def take_batch(self) -> Batch:
        """The oldest groups that make a step. Call only when `ready`."""
        assert len(self._buffer) >= self.config.groups_per_step, "take_batch needs a whole batch"
        groups = sorted(self._buffer)[: self.config.groups_per_step]
        rollouts = [rollout for group in groups for rollout in self._buffer.pop(group)]
        advantages = group_advantages(self._shuffled(rollouts) if self.config.shuffle_rewards else rollouts)
        for group in groups:
            self.cursor.settle(group)
        for rollout in rollouts:
            self._settle_rollout(rollout, Disposition.TRAINED, advantages[rollout.rollout_id])
        return Batch(rollouts, advantages)

    def drain_settled(self) -> list[LedgerEntry]:
        """Everything settled since the last call, for the ledger."""
        settled, self.settled = self.settled, []
        return settled

    def published(self, version: int) -> None:
        """The engines serve this version now."""
        assert version == self.version + 1, f"version {version} published after {self.version}"
        self.version = version

    def state(self) -> dict[str, Any]:
        """For a checkpoint taken right after a step: what runs or waits is run again after a resume."""
        return {"version": self.version, "low": self.cursor.low, "above": sorted(self.cursor.above)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`. The budget of accepted rollouts is restored with it: it is what was trained."""
        self.version = state["version"]
        self.cursor = Cursor(state["low"], set(state["above"]))
        self._accepted = self.version * self.batch_size
        self._next = self.cursor.low

    def _shuffled(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The control experiment: the same rewards, dealt out at random."""
        order = np.random.default_rng([self.config.seed, self.version]).permutation(len(rollouts))
        return [msgspec.structs.replace(r, reward=rollouts[i].reward) for r, i in zip(rollouts, order, strict=True)]

    def _fresh(self) -> int:
        while self._next in self.cursor:
            self._next += 1
        self._next += 1
        return self._next - 1

    def _drop_stale(self) -> None:
        for group, rollouts in list(self._buffer.items()):
            oldest = min((v.step for rollout in rollouts for v in rollout.versions), default=self.version)
            if self.version - oldest > self.config.max_staleness:
                del self._buffer[group]
                self._accepted -= len(rollouts)
                self._drop(group, rollouts, Disposition.STALE)

    def _drop(self, group: int, rollouts: Sequence[Rollout], why: Disposition) -> None:
        self.cursor.settle(group)
        for rollout in rollouts:
            self._settle_rollout(rollout, why)

    def _settle_rollout(self, rollout: Rollout, how: Disposition, advantage: float | None = None) -> None:
        self.settled.append(LedgerEntry(rollout=rollout, step=self.version, disposition=how, advantage=advantage))
