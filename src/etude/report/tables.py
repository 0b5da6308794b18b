"""The tables of the page: evaluations, the account of rollouts, the corpus.

Invariant: totals in the account are counted on their own, never summed from the cells, so that a hole shows.
"""

from collections.abc import Sequence
from typing import Any

from etude.report.data import Accounting, Evaluation
from etude.report.figures import stage_name
from etude.report.markup import Markup, join, measured, tag
from etude.report.numbers import number, percent

_DISPOSITIONS = {
    "trained": "trained",
    "no_gradient": "no gradient: its group's rewards were all equal",
    "stale": "dropped: sampled by weights that were too old",
    "infra": "infrastructure fault: tried again",
    "aborted": "stopped by us",
    "eval": "evaluation, never trained",
}
_OUTCOMES = ("solved", "failed", "overlong", "agent_fault", "infra_fault", "aborted")
_DEPTH = 3  # of nested tables in the corpus manifest


def evaluations(found: Sequence[Evaluation]) -> Markup:
    """One line an evaluation."""
    head = (
        "checkpoint",
        "step",
        "tasks",
        "samples",
        "temperature",
        "pass@1",
        "95 % interval",
        "tokens per solved",
        "s per task",
    )
    rows = []
    for index, one in enumerate(found):
        key = f"evaluations.{index}"
        score = one.pass_at_1
        rows.append([
            stage_name(one),
            number(one.step),
            measured(f"{key}.tasks", one.tasks, number(one.tasks)),
            measured(f"{key}.samples", one.samples, number(one.samples)),
            number(one.temperature),
            measured(f"{key}.pass_at_1.mean", score.mean, percent(score.mean)) if score else "–",
            f"{percent(score.low)} to {percent(score.high)}" if score else "–",
            measured(f"{key}.tokens_per_solved", one.tokens_per_solved, number(one.tokens_per_solved)),
            measured(f"{key}.seconds_per_task", one.seconds_per_task, number(one.seconds_per_task)),
        ])  # fmt: skip
    return _table(head, rows)


def outcomes(found: Sequence[Evaluation]) -> Markup | None:
    """How the attempts of each evaluation ended."""
    used = [name for name in _OUTCOMES if any(name in one.outcomes for one in found)]
    if not used:
        return None
    rows = []
    for index, one in enumerate(found):
        cells = [
            measured(f"evaluations.{index}.outcomes.{n}", one.outcomes.get(n), number(one.outcomes.get(n)))
            for n in used
        ]
        rows.append([stage_name(one), *cells, number(sum(one.outcomes.values())) if one.outcomes else "–"])
    return _table(("checkpoint", *(_words(name) for name in used), "attempts"), rows)


def accounting(account: Accounting) -> Markup:
    """Disposition by outcome, and the checks that the sums hold."""
    used = [name for name in _OUTCOMES if name in account.by_outcome]
    rows: list[list[object]] = []
    for disposition, words in _DISPOSITIONS.items():
        if disposition not in account.by_disposition:
            continue
        row = account.counts.get(disposition, {})
        cells = [_count(f"ledger.counts.{disposition}.{name}", row.get(name)) for name in used]
        total = account.by_disposition[disposition]
        rows.append([words, *cells, _count(f"ledger.by_disposition.{disposition}", total)])
    sums = [_count(f"ledger.by_outcome.{name}", account.by_outcome[name]) for name in used]
    foot = ["every rollout", *sums, _count("ledger.total", account.total)]
    checks = [
        tag(
            "li",
            tag("b", "✓" if check.holds else "✗", class_="good" if check.holds else "bad"),
            f" {check.what}: ",
            measured(f"ledger.checks.{index}.ledger", check.ledger, f"{check.ledger:,}"),
            " = " if check.holds else " ≠ ",
            measured(f"ledger.checks.{index}.other", check.other, f"{check.other:,}"),
        )
        for index, check in enumerate(account.checks)
    ]
    table = _table(("what became of it", *(_words(name) for name in used), "all"), rows, foot)
    return join(table, tag("ul", checks, class_="checks"))


def corpus(manifest: dict[str, Any]) -> Markup:
    """Whatever the manifest holds: numbers and words as they are, tables indented below their name."""
    rows = list(_flat(manifest, "corpus", 0))
    return tag("div", tag("table", tag("tbody", rows), class_="plain"), class_="scroll")


def _flat(table: dict[str, Any], path: str, depth: int) -> list[Markup]:
    rows = []
    for name, value in table.items():
        key, indent = f"{path}.{name}", f"d{depth}"
        head = tag("th", _words(name), class_=indent)
        if isinstance(value, dict) and depth < _DEPTH:
            if value:
                rows.append(tag("tr", head, tag("td")))
                rows += _flat(value, key, depth + 1)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            text = (
                {None: "–", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)
            )
            rows.append(tag("tr", head, tag("td", text if len(text) <= 120 else text[:119] + "…")))
        else:
            shown = f"{value:,}" if isinstance(value, int) else number(value)
            rows.append(tag("tr", head, tag("td", measured(key, value, shown))))
    return rows


def _count(key: str, value: int | None) -> Markup:
    """A count; a cell that nothing fell into is a dot, which is zero said quietly."""
    return tag("span", "·", class_="none") if value is None else measured(key, value, f"{value:,}")


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], foot: Sequence[object] | None = None) -> Markup:
    parts = [tag("thead", tag("tr", [tag("th", name) for name in head]))]
    parts.append(tag("tbody", [_line(row) for row in rows]))
    if foot is not None:
        parts.append(tag("tfoot", _line(foot)))
    return tag("div", tag("table", parts), class_="scroll")


def _line(cells: Sequence[object]) -> Markup:
    return tag("tr", tag("th", cells[0]), [tag("td", cell) for cell in cells[1:]])


def _words(name: str) -> str:
    return name.replace("_", " ")
