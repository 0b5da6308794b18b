"""From a run folder to `ReportData`, at any moment of a run.

Invariant: `collect` never guesses. A file that is not there yet is an absent stage; a file that is there but broken is
named in `problems`; a number that cannot be computed is None.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from etude.evaluate.stats import paired_difference
from etude.observe import read_metrics
from etude.records import UserError
from etude.records.ledger import ledger_files, query
from etude.report.data import Accounting, Check, Evaluation, Gain, Headline, ReportData, Series
from etude.report.reading import pick_rollouts

_STAGES = {"bulk": 0, "sft": 1}  # evaluations before RL, in the order of the run; all others sort by their step


def collect(run_dir: str | Path) -> ReportData:
    """Read what a run folder holds by now. Raises UserError only when there is no such folder."""
    run = Path(run_dir)
    if not run.is_dir():
        raise UserError(f"{run}: no such run folder; give the folder that `etude quickstart` or `etude rl` wrote")
    problems: list[str] = []
    data = ReportData(run=run.resolve().name)
    data.corpus = _json(run / "corpus" / "manifest.json", dict[str, Any], problems)
    data.timing = _json(run / "timing.json", dict[str, float], problems) or {}
    data.pretrain = _series(run / "pretrain" / "metrics.jsonl")
    data.rl = _series(run / "rl" / "metrics.jsonl")
    found = [_evaluation(path, problems) for path in sorted((run / "eval").glob("*.json"))]
    data.evaluations = sorted(filter(None, found), key=_stage_order)
    ledger = run / "rl" / "ledger"
    if ledger_files(ledger):
        tokenizer = run / "corpus" / "tokenizer" / "tokenizer.json"
        data.ledger = _attempt(lambda: _accounting(ledger, data.rl), problems)
        data.rollouts = _attempt(lambda: pick_rollouts(ledger, tokenizer), problems) or []
    data.configs = {
        path.parent.name: path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(run.glob("*/config.toml"))
    }
    data.headline = _headline(data)
    data.problems = problems
    return data


def _attempt(read: Callable[[], Any], problems: list[str]) -> Any:
    try:
        return read()
    except UserError as error:
        if str(error) not in problems:
            problems.append(str(error))
        return None


def _json(path: Path, kind: Any, problems: list[str]) -> Any:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        problems.append(f"{path}: not the JSON that was expected: {error}")
        return None


def _evaluation(path: Path, problems: list[str]) -> Evaluation | None:
    raw = _json(path, dict[str, Any], problems)
    if raw is None:
        return None
    try:
        return msgspec.convert({"name": path.stem, **raw}, Evaluation)
    except msgspec.ValidationError as error:
        problems.append(f"{path}: not an evaluation: {error}")
        return None


def _stage_order(evaluation: Evaluation) -> tuple[int, int, str]:
    return _STAGES.get(evaluation.name, len(_STAGES)), evaluation.step or 0, evaluation.name


def _series(path: Path) -> Series | None:
    rows = read_metrics(path)
    if not rows:
        return None
    names = {name: None for row in rows for name, value in row.items() if _is_number(value)}  # in order of appearance
    columns = {
        name: [float(row[name]) if _is_number(row.get(name)) else None for row in rows]
        for name in names
        if name != "step"
    }
    return Series(
        step=[row["step"] for row in rows], columns=columns, phase=[str(row.get("phase", "")) for row in rows]
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _accounting(ledger: Path, rl: Series | None) -> Accounting:
    rows = query(ledger, "SELECT disposition, outcome, count(*) AS n FROM rollouts GROUP BY ALL ORDER BY ALL")
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        counts.setdefault(row["disposition"], {})[row["outcome"]] = row["n"]

    def totals(column: str) -> dict[str, int]:
        answer = query(ledger, f"SELECT {column} AS key, count(*) AS n FROM rollouts GROUP BY ALL ORDER BY ALL")
        return {row["key"]: row["n"] for row in answer}

    by_disposition = totals("disposition")
    total = query(ledger, "SELECT count(*) AS n, count(DISTINCT (rollout_id, attempt)) AS once FROM rollouts")[0]
    accounting = Accounting(
        counts=counts,
        by_disposition=by_disposition,
        by_outcome=totals("outcome"),
        total=total["n"],
        files=len(ledger_files(ledger)),
    )
    accounting.checks = [
        _check("every attempt was settled once", total["n"], total["once"]),
        _check("the dispositions add up", total["n"], sum(by_disposition.values())),
        _check("the outcomes add up", total["n"], sum(accounting.by_outcome.values())),
        *_against_metrics(ledger, accounting, rl),
    ]
    return accounting


def _against_metrics(ledger: Path, accounting: Accounting, rl: Series | None) -> list[Check]:
    """The trainer counted for itself, step by step; over a whole run the two accounts must agree."""
    if rl is None:
        return []
    tokens = query(
        ledger, "SELECT coalesce(sum(sampled_tokens), 0)::BIGINT AS n FROM rollouts WHERE disposition = 'trained'"
    )
    pairs = (
        ("rollouts trained, as the trainer counted", "rollouts_trained", accounting.by_disposition.get("trained", 0)),
        ("tokens trained, as the trainer counted", "tokens_trained", tokens[0]["n"]),
    )
    return [_check(what, held, int(sum(rl.known(name)))) for what, name, held in pairs if rl.known(name)]


def _check(what: str, ledger: int, other: int) -> Check:
    return Check(what=what, ledger=ledger, other=other, holds=ledger == other)


def _headline(data: ReportData) -> Headline:
    head = Headline(gain=_gain(data.evaluations), seconds=sum(data.timing.values()) if data.timing else None)
    before, after = _around_rl(data.evaluations)
    head.tokens_per_solved_before = before.tokens_per_solved if before else None
    head.tokens_per_solved_after = after.tokens_per_solved if after else None
    if data.rl is not None:
        head.rl_steps = len(data.rl.step)
        whole, delta = sum(data.rl.known("full_bytes")), sum(data.rl.known("delta_bytes"))
        head.delta_ratio = whole / delta if delta else None
        head.k3_replay, head.k3_live = _paired_medians(data.rl.get("k3_replay"), data.rl.get("k3_live"))
        for name in ("tokens_sampled", "tokens_trained"):
            known = data.rl.known(name)
            setattr(head, name, int(sum(known)) if known else None)
    return head


def _around_rl(evaluations: list[Evaluation]) -> tuple[Evaluation | None, Evaluation | None]:
    """The last evaluation before RL and the last one after it."""
    before = [evaluation for evaluation in evaluations if evaluation.name in _STAGES]
    after = [evaluation for evaluation in evaluations if evaluation.name not in _STAGES]
    return (before[-1] if before else None), (after[-1] if after else None)


def _gain(evaluations: list[Evaluation]) -> Gain | None:
    before, after = _around_rl(evaluations)
    if before is None or after is None or before.pass_at_1 is None or after.pass_at_1 is None:
        return None
    gain = Gain(before=before.name, after=after.name, points=after.pass_at_1.mean - before.pass_at_1.mean)
    old, new = _with_samples(before.per_task), _with_samples(after.per_task)
    if old.keys() & new.keys():
        gain.paired = paired_difference(old, new)
    return gain


def _with_samples(per_task: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {task: values for task, values in per_task.items() if values}


def _paired_medians(replay: list[float | None], live: list[float | None]) -> tuple[float | None, float | None]:
    """Medians over the steps that measured both, so that the two are of the same data."""
    pairs = [(a, b) for a, b in zip(replay, live, strict=True) if a is not None and b is not None]
    if not pairs:
        return None, None
    middle = len(pairs) // 2
    return sorted(a for a, _ in pairs)[middle], sorted(b for _, b in pairs)[middle]
