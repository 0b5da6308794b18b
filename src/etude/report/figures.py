"""Which charts the page has: each with a title, a sentence on what to look for, and axes with units.

Invariant: a figure whose stage ran but whose numbers were never measured says so; a stage that did not run has none.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from etude.report.data import Column, Evaluation, ReportData, Series
from etude.report.markup import Markup, join, tag
from etude.report.numbers import duration, number, percent
from etude.report.svg import Line, Row, bars, intervals, lines

Write = Callable[[float | None], str]


class Curve(NamedTuple):
    """A line chart over RL steps. series: (column, name, colour); `sparse` and `broad` name columns drawn that way."""

    title: str
    why: str
    y_label: str
    series: tuple[tuple[str, str, int], ...]
    write: Write = number
    log: bool = False
    from_zero: bool = True
    sparse: tuple[str, ...] = ()
    broad: tuple[str, ...] = ()


LEARNING = (
    Curve(
        "Reward and solved rate",
        "Both should climb; a reward that climbs without the solved rate is reward hacking or a broken grader.",
        "share of rollouts",
        (("solved_rate", "solved", 2), ("reward_mean", "reward, mean", 0)),
        percent,
        broad=("solved_rate",),
    ),
    Curve(
        "Work per rollout",
        "Turns should follow the tasks, not the reward; a steady rise means that the agent learns to stall.",
        "per rollout, mean",
        (("turns_mean", "turns", 0), ("summaries_per_rollout", "summaries", 3)),
    ),
)
HEALTH = (
    Curve("RL loss", "No trend is expected: look for jumps.", "loss", (("loss", "loss", 0),), from_zero=False),
    Curve(
        "Gradient norm",
        "Should stay within one order of magnitude; spikes come from a few tokens with a large ratio.",
        "norm before clipping",
        (("grad_norm", "gradient norm", 1),),
    ),
    Curve(
        "KL to the policy RL started from (k1)",
        "Mean of log p(policy) minus log p(reference) over trained tokens: it grows as the policy moves away.",
        "nats per token",
        (("kl_k1", "k1", 4),),
        from_zero=True,
    ),
    Curve(
        "Entropy",
        "Falls slowly while the policy sharpens; a collapse to zero ends exploration.",
        "nats per token",
        (("entropy", "entropy", 3),),
    ),
    Curve(
        "Importance ratios clipped",
        "The share of tokens whose ratio left the trust region: above a few percent the data is too old.",
        "share of tokens",
        (("ratio_clipped", "clipped", 1),),
        percent,
    ),
    Curve(
        "Staleness",
        "Optimizer steps between sampling and training: the maximum must stay below the configured bound.",
        "steps",
        (("staleness_mean", "mean", 0), ("staleness_max", "maximum", 1)),
    ),
)
REPLAY = (
    Curve(
        "Mismatch with and without router replay",
        "The same tokens scored twice: replaying the sampler's experts should lie well below routing anew.",
        "KL (k3), nats per token",
        (("k3_live", "routed anew", 1), ("k3_replay", "replayed", 0)),
        log=True,
        sparse=("k3_live", "k3_replay"),
    ),
    Curve(
        "Largest log-probability gaps",
        "99th percentile of the gap between sampler and trainer: what the mean above can hide.",
        "nats",
        (("logp_gap_p99", "gap, 99th percentile", 4),),
    ),
    Curve(
        "Replay coverage",
        "The share of trained tokens with recorded experts: anything below 100 % was routed anew.",
        "share of tokens",
        (("coverage", "covered", 2),),
        percent,
    ),
)
SYNC = (
    Curve(
        "Size of a weight delta",
        "How many times smaller the published delta is than all weights: what regions have to download.",
        "full size / delta size",
        (("delta_ratio", "ratio", 0),),
    ),
    Curve(
        "Weights that changed",
        "The share of bf16 weights whose bits changed in a step: it sets what any delta must say.",
        "share of weights",
        (("changed_share", "changed", 3),),
        percent,
    ),
)
COST = (
    Curve(
        "Tokens per solved task",
        "Should fall as the model learns; a gap is a step that solved nothing.",
        "sampled tokens",
        (("tokens_per_solved", "tokens per solved", 0),),
    ),
    Curve(
        "Seconds per solved task",
        "Wall seconds of rollouts for each task solved, all costs included.",
        "seconds",
        (("seconds_per_solved", "seconds per solved", 1),),
    ),
    Curve(
        "Sampling throughput",
        "Tokens sampled per wall second of the whole loop; dips are pauses or slow tools.",
        "tokens per second",
        (("sampled_tokens_per_s", "sampled", 2),),
    ),
    Curve(
        "Where each step goes",
        "Waiting should be the smallest part: it is time in which the trainer starves.",
        "seconds",
        (
            ("step_s", "step", 5),
            ("train_s", "training", 0),
            ("wait_s", "waiting", 1),
            ("publish_s", "publishing", 3),
            ("pause_s", "engines paused", 4),
        ),
    ),
)


def figure(title: str, why: str, body: object, legend: object = None) -> Markup:
    """A chart with its title and the sentence that says what to look for."""
    caption = tag("figcaption", tag("h3", title), tag("p", why), legend)
    return tag("figure", caption, body)


def curves(specs: Sequence[Curve], data: Series) -> list[Markup]:
    """The line charts of a table above, over RL steps."""
    return [_curve(spec, data) for spec in specs]


def _curve(spec: Curve, data: Series) -> Markup:
    drawn = [
        Line(name, color, data.get(column), column in spec.sparse, column.endswith("_max"), column in spec.broad)
        for column, name, color in spec.series
        if data.known(column)
    ]
    if not drawn:
        return figure(spec.title, spec.why, not_measured())
    chart = lines(data.step, drawn, "RL step", spec.y_label, spec.log, spec.from_zero, spec.write)
    return figure(spec.title, spec.why, chart, _legend([(one, spec.write) for one in drawn]))


def _legend(drawn: Sequence[tuple[Line, Write]]) -> Markup:
    """Names with their colours and last values."""
    keys = []
    for line, write in drawn:
        last = next((value for value in reversed(line.values) if value is not None), None)
        keys.append(tag("span", tag("i", class_=f"key b{line.color}"), line.name, " ", tag("b", write(last))))
    return tag("p", keys, class_="legend")


def not_measured() -> Markup:
    """Stands where a chart would be: missing is not zero."""
    return tag("p", "not measured in this run", class_="empty")


def scores(evaluations: Sequence[Evaluation]) -> Markup | None:
    """pass@1 of every evaluation with its interval."""
    rows = [Row(stage_name(e), [(stage_color(e), e.pass_at_1, stage_name(e))]) for e in evaluations if e.pass_at_1]
    if not rows:
        return None
    chart = intervals(rows, "pass@1 on held-out tasks, with 95 % interval", pitch=max(19.0, 126.0 / len(rows)))
    return figure(
        "Held-out tasks solved at the first attempt",
        "Bars are 95 % intervals over tasks: where two do not overlap, chance is a poor explanation.",
        chart,
    )


def tiers(evaluations: Sequence[Evaluation]) -> Markup | None:
    """pass@1 by difficulty, one dot an evaluation."""
    names = sorted({tier for e in evaluations for tier in e.by_tier}, key=lambda tier: (len(tier), tier))
    if not names:
        return None
    rows = [
        Row(
            f"tier {tier}", [(stage_color(e), e.by_tier[tier], stage_name(e)) for e in evaluations if tier in e.by_tier]
        )
        for tier in names
    ]
    shown = {stage_name(e): stage_color(e) for e in evaluations if e.by_tier}
    legend = tag("p", [tag("span", tag("i", class_=f"key b{c}"), n) for n, c in shown.items()], class_="legend")
    why = "Easy tiers saturate first; RL should move the middle ones."
    return figure("pass@1 by tier", why, intervals(rows, "pass@1, with 95 % interval", gutter=52.0), legend)


def stage_name(evaluation: Evaluation) -> str:
    """What people call the checkpoint."""
    return {"bulk": "before SFT", "sft": "before RL", "rl": "after RL"}.get(
        evaluation.name, evaluation.label or evaluation.name
    )


def stage_color(evaluation: Evaluation) -> int:
    """Grey before SFT, orange before RL, blue after it."""
    return {"bulk": 5, "sft": 1}.get(evaluation.name, 0)


def pretraining(data: Series) -> list[Markup]:
    """Loss and throughput of both phases over one step count: a phase that counts from zero again is moved on."""
    steps, offset, last = [], 0, None
    for step, phase in zip(data.step, data.phase, strict=True):
        if last is not None and phase != last[1] and step <= last[0]:
            offset = steps[-1] + 1 - step
        steps.append(step + offset)
        last = (step, phase)

    def only(phase: str, column: str) -> Column:
        return [v if p == phase else None for p, v in zip(data.phase, data.get(column), strict=True)]

    names = {"bulk": ("code, bulk phase", 0), "sft": ("SFT", 1)}
    phases = list(dict.fromkeys(data.phase))
    loss = [Line(*names.get(phase, (phase or "loss", 2)), only(phase, "loss")) for phase in phases]
    held_out = Line("held out", 2, data.get("held_out_loss"), sparse=True)
    loss += [held_out] if data.known("held_out_loss") else []
    speed = [Line(*names.get(phase, (phase or "tokens", 2)), only(phase, "tokens_per_s")) for phase in phases]
    rate = [Line(*names.get(phase, (phase or "rate", 2)), only(phase, "lr")) for phase in phases]
    wanted = (
        ("Pretraining loss", "Held-out loss should follow the training loss; the step down is the change to SFT data.",
         loss, "nats per token", False),
        ("Learning rate", "Warm-up, then decay, once for each phase.", rate, "learning rate", True),
        ("Pretraining throughput", "Level; dips are evaluations and checkpoints.", speed, "tokens per second", True),
    )  # fmt: skip
    figures = []
    for title, why, drawn, y_label, from_zero in wanted:
        known = any(value is not None for line in drawn for value in line.values)
        chart = lines(steps, drawn, "optimizer step", y_label, from_zero=from_zero) if known else not_measured()
        figures.append(figure(title, why, chart, _legend([(line, number) for line in drawn]) if known else None))
    return figures


def whole_time(data: ReportData) -> list[Markup]:
    """Stages of the run, and what RL did with its time."""
    figures = []
    if data.timing:
        rows = [(stage, seconds, 0) for stage, seconds in data.timing.items()]
        chart = bars(rows, "wall time, seconds", duration)
        figures.append(figure("Time by stage", "From an empty folder to this page.", chart))
    if data.rl is not None and data.rl.known("step_s"):
        parts = [("training", "train_s", 0), ("waiting", "wait_s", 1), ("publishing", "publish_s", 3)]
        rows = [(name, sum(data.rl.known(column)), color) for name, column, color in parts if data.rl.known(column)]
        rest = sum(data.rl.known("step_s")) - sum(seconds for _, seconds, _ in rows)
        rows += [("the rest", rest, 5)] if rest > 0 else []
        why = "What the trainer did with its steps, summed over the run; sampling goes on beside it."
        figures.append(figure("Where RL's time goes", why, bars(rows, "wall time, seconds", duration)))
    return figures


def grid(figures: Sequence[Markup | None]) -> Markup:
    """Two charts a line, one on a phone."""
    return tag("div", join([one for one in figures if one]), class_="grid")
