"""The report page: one HTML file with everything inside, for people; the same numbers as JSON, for programs.

Invariant: the page asks the network for nothing (its content policy forbids it), all text from data is escaped, and the
file is written whole or not at all.
"""

from importlib.resources import files
from pathlib import Path

from etude.records import write_atomic
from etude.report import figures, tables, tokens
from etude.report.collect import collect
from etude.report.data import Gain, ReportData
from etude.report.figures import grid, stage_name
from etude.report.markup import Markup, join, measured, tag
from etude.report.numbers import duration, number, percent, points

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_report(run_dir: str | Path) -> Path:
    """Write `report.html` into a run folder and return its path. Raises UserError when there is no such folder."""
    path = Path(run_dir) / "report.html"
    write_atomic(path, render(collect(run_dir)))
    return path


def render(data: ReportData) -> str:
    """The page as one self-contained HTML document."""
    source = files("etude.report")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        tag("title", f"{data.run} · Étude"),
        tag("style", Markup(source.joinpath("style.css").read_text(encoding="utf-8"))),
    )
    tip = tag("div", id="tip", role="status")
    script = tag("script", Markup(source.joinpath("script.js").read_text(encoding="utf-8")))
    body = tag("body", tag("main", _header(data), _headline(data), _sections(data), _footer(data)), tip, script)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _header(data: ReportData) -> Markup:
    problems = [tag("li", problem) for problem in data.problems]
    return join(
        tag("header", tag("p", "Étude", class_="brand"), tag("h1", data.run), tag("p", _story(data), class_="lead")),
        tag("div", tag("b", "Could not be read"), tag("ul", problems), class_="problems") if problems else None,
    )


def _story(data: ReportData) -> str:
    """The run in one or two sentences, from what is there."""
    scores = [(percent(one.pass_at_1.mean), stage_name(one)) for one in data.evaluations if one.pass_at_1]
    story = ""
    if scores:
        first, *others = (f"{share} {when}" for share, when in scores)
        listed = " and ".join(filter(None, [", ".join([first, *others[:-1]]), *others[-1:]]))
        listed = listed.replace(scores[0][0], f"{scores[0][0]} of held-out tasks", 1)
        story = f"At the first attempt the model solves {listed}. "
    if data.headline.rl_steps:
        total = f", {data.ledger.total:,} rollouts" if data.ledger else ""
        story += f"RL has taken {data.headline.rl_steps} steps{total}. "
    return story or "Nothing has been measured yet: this page fills as the run goes on."


def _headline(data: ReportData) -> Markup:
    head = data.headline
    tiles = [
        _tile("gain of RL, points of pass@1", _gain(head.gain), _gain_note(head.gain)),
        _tile("time, all stages", measured("headline.seconds", head.seconds, duration(head.seconds)), ""),
        _tile(
            "weight delta, smaller than the model by",
            measured("headline.delta_ratio", head.delta_ratio, number(head.delta_ratio) + "×"),
            "all bytes of weights over all bytes published",
        ),
        _tile(
            "mismatch with replay, k3",
            measured("headline.k3_replay", head.k3_replay, number(head.k3_replay)),
            join("without: ", measured("headline.k3_live", head.k3_live, number(head.k3_live)), ", medians"),
        ),
        _tile(
            "tokens per solved task",
            measured(
                "headline.tokens_per_solved_after", head.tokens_per_solved_after, number(head.tokens_per_solved_after)
            ),
            join(
                "before RL: ",
                measured(
                    "headline.tokens_per_solved_before",
                    head.tokens_per_solved_before,
                    number(head.tokens_per_solved_before),
                ),
            ),
        ),
        _tile(
            "tokens trained",
            measured("headline.tokens_trained", head.tokens_trained, number(head.tokens_trained)),
            join("sampled: ", measured("headline.tokens_sampled", head.tokens_sampled, number(head.tokens_sampled))),
        ),
    ]
    return tag("section", figures.scores(data.evaluations), tag("div", tiles, class_="tiles"), class_="headline")


def _tile(label: str, value: object, note: object) -> Markup:
    return tag("div", tag("span", label, class_="label"), tag("strong", value), tag("span", note, class_="note"))


def _gain(gain: Gain | None) -> Markup:
    return measured("headline.gain.points", gain.points if gain else None, points(gain.points if gain else None))


def _gain_note(gain: Gain | None) -> str:
    if gain is None or gain.paired is None:
        return ""
    low, high = points(gain.paired.low), points(gain.paired.high)
    return f"{low} to {high} (95 %, paired over {gain.paired.n} tasks)"


def _sections(data: ReportData) -> list[Markup]:
    sections = []
    learned = [figures.tiers(data.evaluations), *(figures.curves(figures.LEARNING, data.rl) if data.rl else [])]
    learned += figures.pretraining(data.pretrain) if data.pretrain else []
    if any(learned):
        sections.append(_section("Did it learn?", grid(learned)))
    if data.evaluations:
        body = (tables.evaluations(data.evaluations), tables.outcomes(data.evaluations))
        sections.append(_section("Evaluations", *body))
    if data.rl:
        sections.append(_section("Is the training healthy?", grid(figures.curves(figures.HEALTH, data.rl))))
        note = "The trainer must score tokens as the sampler did; a model of experts that routes anew does not."
        sections.append(
            _section("Do sampler and trainer agree?", tag("p", note), grid(figures.curves(figures.REPLAY, data.rl)))
        )
        sections.append(_section("What do weights cost to move?", grid(figures.curves(figures.SYNC, data.rl))))
    cost = [*figures.whole_time(data), *(figures.curves(figures.COST, data.rl) if data.rl else [])]
    if cost:
        sections.append(_section("What does it cost?", grid(cost)))
    if data.ledger:
        note = f"Counted in {data.ledger.files} ledger files. A row is what became of a rollout, a column how it ended."
        sections.append(_section("Where did every rollout go?", tag("p", note), tables.accounting(data.ledger)))
    if data.rollouts:
        note = (
            "Exactly what the engine read and wrote. Point at a token for its id, log-probability, weights and experts."
        )
        views = [tokens.rollout(view, index == 0) for index, view in enumerate(data.rollouts)]
        sections.append(_section("Rollouts, token by token", tag("p", note), tokens.legend(), views))
    if data.corpus:
        sections.append(_section("Corpus", tables.corpus(data.corpus)))
    if data.configs:
        folded = [tag("details", tag("summary", name), tag("pre", text)) for name, text in data.configs.items()]
        sections.append(_section("Configuration", tag("p", "As resolved, defaults included."), folded))
    return sections


def _section(title: str, *body: object) -> Markup:
    return tag("section", tag("h2", title), body)


def _footer(data: ReportData) -> Markup:
    words = "A dash or a gap means not measured; zero means zero. The same numbers as JSON: etude report --json"
    return tag("footer", words)
