"""Rollouts to read: every token coloured by where it came from, with its facts one hover away.

Invariant: each token is one element whose text is escaped; its facts travel as `data-k` = id|logprob|version|experts,
which the page's script turns into words (spelled out they would triple the page).
"""

import json

from etude.records import Origin
from etude.report.data import RolloutView, SegmentView, TokenRun
from etude.report.markup import Markup, join, tag
from etude.report.numbers import duration, number

_CLASSES = {Origin.PROMPT: "p", Origin.SAMPLED: "s", Origin.OBSERVATION: "o", Origin.QUERY: "q", Origin.COPIED: "y"}
_WORDS = {
    Origin.PROMPT: "prompt",
    Origin.SAMPLED: "sampled by the policy: what is trained",
    Origin.OBSERVATION: "observation from the machine",
    Origin.QUERY: "the harness asks for a summary",
    Origin.COPIED: "carried over from the segment before",
}
_SURPRISE = -2.3  # nats, a probability of a tenth


def legend() -> Markup:
    """What the colours mean."""
    keys = [tag("span", tag("i", "token", class_=_CLASSES[origin]), " ", _WORDS[origin]) for origin in Origin]
    rare = tag("span", tag("i", "token", class_="s u"), " sampled against the odds (p < 0.1)")
    return tag("p", keys, rare, class_="legend tokens")


def rollout(view: RolloutView, first: bool) -> Markup:
    """A rollout, folded unless it is the first."""
    summary = tag(
        "summary",
        tag("b", view.why),
        tag("span", view.outcome.replace("_", " "), class_=f"pill {'good' if view.outcome == 'solved' else 'bad'}"),
        tag("span", f"step {view.step}, tier {view.tier}, {view.sampled_tokens} tokens sampled", class_="quiet"),
    )
    facts = [
        ("rollout", view.rollout_id),
        ("task", view.task_id),
        ("what became of it", view.disposition.replace("_", " ")),
        ("reward", number(view.reward)),
        ("advantage", number(view.advantage)),
        ("attempt", str(view.attempt)),
        *((name, duration(seconds)) for name, seconds in view.seconds.items()),
        *((name.replace("_", " "), str(count)) for name, count in view.counts.items()),
    ]
    listed = tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts])
    detail = tag("p", view.detail, class_="quiet") if view.detail else None
    segments = [_segment(one, index, len(view.segments)) for index, one in enumerate(view.segments)]
    return tag("details", summary, listed, detail, segments, class_="rollout", open="" if first else None)


def _segment(view: SegmentView, index: int, count: int) -> Markup:
    parts: list[object] = []
    if count > 1:
        parts.append(tag("h4", f"Segment {index + 1} of {count}, {view.tokens} tokens"))
    gap = tag("span", f"\n… {view.skipped} tokens not shown …\n", class_="gap") if view.skipped else None
    body = [_run(run) for run in view.runs]
    body.insert(1, join(gap))
    context = {"versions": view.versions, "layers": view.layers, "of": view.n_layers}
    parts.append(tag("pre", body, class_="tokens", data_s=json.dumps(context, separators=(",", ":"))))
    return join(parts)


def _run(run: TokenRun) -> Markup:
    parts = []
    columns = zip(run.ids, run.texts, run.origins, run.logprobs, run.versions, run.routes, strict=True)
    for token, text, origin, logprob, version, routes in columns:
        kind = _CLASSES[Origin(origin)] + (" u" if logprob is not None and logprob < _SURPRISE else "")
        experts = " ".join(",".join(str(expert) for expert in layer) for layer in routes)
        facts = f"{token}|{'' if logprob is None else logprob}|{'' if version < 0 else version}|{experts}"
        parts.append(tag("i", text.replace("\n", "⏎\n"), class_=kind, data_k=facts))
    return join(parts)
