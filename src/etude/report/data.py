"""Everything the report says, as one JSON-able record: the page shows these numbers and no others.

Invariant: missing is None (or an absent stage), never zero. Shares are fractions of 1, times are seconds, sizes bytes.
"""

from typing import Any

import msgspec

from etude.evaluate.stats import Interval

Column = list[float | None]


class Series(msgspec.Struct, kw_only=True):
    """A metrics log turned into columns of equal length, one entry a row; None where a row does not say."""

    step: list[int] = []
    columns: dict[str, Column] = {}
    phase: list[str] = []

    def get(self, name: str) -> Column:
        """The column, or as many gaps as there are rows when no row ever had it."""
        return self.columns.get(name) or [None] * len(self.step)

    def known(self, name: str) -> list[float]:
        """The values of a column without its gaps."""
        return [value for value in self.columns.get(name, ()) if value is not None]


class Evaluation(msgspec.Struct, kw_only=True):
    """One held-out evaluation of one checkpoint, as the evaluation wrote it."""

    name: str
    label: str = ""
    step: int | None = None
    temperature: float | None = None
    tasks: int | None = None
    samples: int | None = None
    pass_at_1: Interval | None = None
    by_tier: dict[str, Interval] = {}
    tokens_per_solved: float | None = None
    seconds_per_task: float | None = None
    outcomes: dict[str, int] = {}
    per_task: dict[str, list[float]] = {}


class Gain(msgspec.Struct, kw_only=True):
    """What RL added to pass@1, task by task; `paired` is None when the evaluations share no tasks."""

    before: str
    after: str
    points: float
    paired: Interval | None = None


class Headline(msgspec.Struct, kw_only=True):
    """The few numbers to read first."""

    gain: Gain | None = None
    seconds: float | None = None
    delta_ratio: float | None = None
    k3_replay: float | None = None
    k3_live: float | None = None
    tokens_per_solved_before: float | None = None
    tokens_per_solved_after: float | None = None
    rl_steps: int | None = None
    tokens_sampled: int | None = None
    tokens_trained: int | None = None


class Check(msgspec.Struct, kw_only=True):
    """A number that two accounts must agree on."""

    what: str
    ledger: int
    other: int
    holds: bool


class Accounting(msgspec.Struct, kw_only=True):
    """Where every rollout went. counts: disposition -> outcome -> rollouts; the totals are counted on their own."""

    counts: dict[str, dict[str, int]]
    by_disposition: dict[str, int]
    by_outcome: dict[str, int]
    total: int
    files: int
    checks: list[Check] = []


class TokenRun(msgspec.Struct, kw_only=True):
    """Consecutive tokens of one segment, in columns. versions index into the segment's `versions`, -1 for none.

    routes: per token one list of expert ids per shown layer; empty where the pass was not recorded.
    """

    ids: list[int]
    texts: list[str]
    origins: list[int]
    logprobs: list[float | None]
    versions: list[int]
    routes: list[list[list[int]]]


class SegmentView(msgspec.Struct, kw_only=True):
    """A segment to read: its first and last tokens when it is long. layers: which layers the routes show."""

    tokens: int
    skipped: int
    versions: list[str]
    layers: list[int]
    n_layers: int
    runs: list[TokenRun]


class RolloutView(msgspec.Struct, kw_only=True):
    """A rollout to read, and why it was picked."""

    why: str
    rollout_id: str
    task_id: str
    tier: int
    attempt: int
    step: int
    disposition: str
    outcome: str
    reward: float | None
    advantage: float | None
    detail: str
    seconds: dict[str, float]
    counts: dict[str, int]
    sampled_tokens: int
    segments: list[SegmentView]


class ReportData(msgspec.Struct, kw_only=True):
    """A run, as far as it has come. A stage that has not run is None or empty.

    problems: files that are there but could not be used, each with the reason.
    """

    run: str
    problems: list[str] = []
    headline: Headline = msgspec.field(default_factory=Headline)
    evaluations: list[Evaluation] = []
    corpus: dict[str, Any] | None = None
    pretrain: Series | None = None
    rl: Series | None = None
    ledger: Accounting | None = None
    timing: dict[str, float] = {}
    rollouts: list[RolloutView] = []
    configs: dict[str, str] = {}


def as_json(data: ReportData) -> str:
    """The report for programs: the numbers of the page as one JSON object; NaN and infinity become null."""
    return msgspec.json.encode(data).decode()
