"""Anything may happen in any order: the account of the rollouts stays whole."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from etude.records import Outcome, Rollout
from etude.records.ledger import Disposition
from etude.runtime.reconciler import Reconciler
from tests.runtime.rollouts import config, rollout

FINAL = (Disposition.TRAINED, Disposition.NO_GRADIENT, Disposition.STALE)
ENDS = st.sampled_from([Outcome.SOLVED, Outcome.FAILED, Outcome.FAILED, Outcome.OVERLONG])


class Runs(RuleBasedStateMachine):
    """A reconciler between workers that finish, fail or vanish, a trainer, and kills.

    The reference is the history itself: which group was settled how, and what a commit had seen of it.
    """

    running = Bundle("running")

    @initialize(staleness=st.integers(0, 2), limit=st.integers(2, 20), shuffle=st.booleans())
    def begin(self, staleness: int, limit: int, shuffle: bool) -> None:
        self.config = config(max_staleness=staleness, shuffle_rewards=shuffle)
        self.limit = limit
        self.reconciler = Reconciler(self.config, limit)
        self.alive: dict[int, tuple[int, int]] = {}  # group -> (attempt, version at its start)
        self.ends: dict[int, list[Disposition]] = defaultdict(list)
        self.seen: Counter[str] = Counter()
        self.commit = (self.reconciler.state(), dict(self.ends), Counter(self.seen))

    @rule(target=running)
    def admit(self) -> object:
        started = self.reconciler.admit()
        for number, attempt in started:
            assert number not in self.alive
            assert not self.ends[number]
            self.alive[number] = (attempt, self.reconciler.version)
        assert len(self.alive) * 2 <= self.limit
        if not started:  # everything was admitted that the two limits allow
            assert self.reconciler.capacity() < 2
        return multiple(*started)

    @rule(group=consumes(running), outcomes=st.tuples(ENDS, ENDS), late=st.booleans())
    def finish(self, group: tuple[int, int], outcomes: Sequence[Outcome], late: bool) -> None:
        if self._gone(group):
            return
        self.reconciler.finished(group[0], self._rollouts(group, outcomes, late))
        del self.alive[group[0]]
        self._account()

    @rule(group=consumes(running), outcome=st.sampled_from([Outcome.INFRA_FAULT, Outcome.ABORTED]))
    def trouble(self, group: tuple[int, int], outcome: Outcome) -> None:
        if self._gone(group):
            return
        self.reconciler.finished(group[0], self._rollouts(group, (Outcome.SOLVED, outcome), False))
        del self.alive[group[0]]
        self._account()

    @rule(group=consumes(running))
    def lose(self, group: tuple[int, int]) -> None:
        if self._gone(group):
            return
        self.reconciler.lost(group[0])
        del self.alive[group[0]]

    @rule(commit=st.booleans())
    def train(self, commit: bool) -> None:
        if not self.reconciler.ready():
            self._account()
            return
        batch = self.reconciler.take_batch()
        assert len(batch.rollouts) == self.reconciler.batch_size
        assert Counter(r.group_id for r in batch.rollouts) == {r.group_id: 2 for r in batch.rollouts}
        assert batch.advantages.keys() == {r.rollout_id for r in batch.rollouts}
        for one in batch.rollouts:
            assert self.reconciler.version - min(v.step for v in one.versions) <= self.config.max_staleness
        self._account()
        self.reconciler.published(self.reconciler.version + 1)
        if commit:
            self.commit = (self.reconciler.state(), {g: list(e) for g, e in self.ends.items()}, Counter(self.seen))

    @rule()
    def kill(self) -> None:
        """The process dies; a new one goes on from the commit, with nothing running."""
        state, ends, seen = self.commit
        self.reconciler = Reconciler(self.config, self.limit)
        self.reconciler.restore(state)
        self.alive = {}
        self.ends = defaultdict(list, {g: list(e) for g, e in ends.items()})
        self.seen = Counter(seen)
        assert self.reconciler.state() == state

    @invariant()
    def every_group_is_settled_at_most_once(self) -> None:
        if hasattr(self, "ends"):
            assert all(len(how) <= 1 for how in self.ends.values())
            assert all(count == 1 for count in self.seen.values())

    @invariant()
    def the_position_is_what_is_settled(self) -> None:
        if hasattr(self, "ends"):
            settled = {group for group, how in self.ends.items() if how}
            cursor = self.reconciler.cursor
            assert {*range(cursor.low), *cursor.above} == settled
            assert cursor.low not in settled

    @invariant()
    def the_budget_is_kept(self) -> None:
        """Running and accepted rollouts, trained ones included, fit under (version + O + 1) * B."""
        if hasattr(self, "ends"):
            reconciler = self.reconciler
            bound = (reconciler.version + self.config.max_staleness + 1) * reconciler.batch_size
            trained = sum(how == [Disposition.TRAINED] for how in self.ends.values()) * 2
            assert trained == reconciler.version * reconciler.batch_size
            assert trained + len(self.alive) * 2 <= bound

    def _gone(self, group: tuple[int, int]) -> bool:
        """Started by a process that was killed since, or by an attempt that was lost."""
        return group[0] not in self.alive or self.alive[group[0]][0] != group[1]

    def _rollouts(self, group: tuple[int, int], outcomes: Sequence[Outcome], late: bool) -> list[Rollout]:
        number, attempt = group
        first, now = self.alive[number][1], self.reconciler.version
        steps = (now,) if late else (first, now)
        return [rollout(number, k, outcome, steps, attempt) for k, outcome in enumerate(outcomes)]

    def _account(self) -> None:
        by_group: dict[int, set[Disposition]] = defaultdict(set)
        for entry in self.reconciler.drain_settled():
            number = int(entry.rollout.group_id[1:])
            by_group[number].add(entry.disposition)
            if entry.disposition in FINAL:
                self.seen[entry.rollout.rollout_id] += 1
        for number, how in by_group.items():
            final = [one for one in how if one in FINAL]
            assert len(final) <= 1 and (not final or how == set(final))
            self.ends[number] += final


Runs.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRuns = Runs.TestCase
