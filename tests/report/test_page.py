"""The page shows the numbers of the JSON, escapes what a model wrote, stands alone, and draws gaps as gaps."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from etude.evaluate.stats import Interval
from etude.observe import MetricsLog
from etude.records import UserError
from etude.report import ReportData, as_json, collect, render, write_report
from etude.report.data import Evaluation
from tests.report.reader import Page
from tests.report.synthetic import make_run

HOSTILE = """</pre></style><script>alert('x')</script><img src=x onerror="alert(1)">"""


def lookup(tree: Any, path: str) -> Any:
    """Follow a dotted path; keys of the data may hold dots themselves, so the longest match is tried first."""
    if not path:
        return tree
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        key: Any = ".".join(parts[:end])
        if isinstance(tree, list) and key.isdigit():
            return lookup(tree[int(key)], ".".join(parts[end:]))
        if isinstance(tree, dict) and key in tree:
            return lookup(tree[key], ".".join(parts[end:]))
    raise KeyError(path)


def test_every_number_of_the_page_is_the_number_of_the_json(data: ReportData, page: str) -> None:
    tree = json.loads(as_json(data))
    numbers = Page(page).numbers
    assert len(numbers) > 60
    for path, value in numbers.items():
        assert json.loads(value) == lookup(tree, path), path


def test_the_numbers_that_people_read_are_those_numbers(data: ReportData, page: str) -> None:
    texts = Page(page).texts
    gain, ratio = data.headline.gain, data.headline.delta_ratio
    assert gain is not None and ratio is not None and data.ledger is not None
    assert texts["data#headline.gain.points"] == f"{gain.points * 100:+.1f}"
    assert texts["data#headline.delta_ratio"] == f"{ratio:.1f}×"
    assert texts["data#ledger.total"] == f"{data.ledger.total:,}"
    assert texts["data#headline.seconds"] == "7 min 38 s"


def test_what_a_model_wrote_is_text(page: str) -> None:
    """The synthetic rollouts hold a script element, broken over several tokens."""
    read = Page(page)
    assert read.count("script") == 1, "only the page's own"
    assert "<script>alert('x')</script>" in "".join(text for _, text in read.tokens)
    assert all(not name.startswith("on") for _, attributes in read.tags for name in attributes)


def test_every_text_of_the_data_is_escaped(data: ReportData) -> None:
    interval = Interval(0.5, 0.4, 0.6, 9)
    view = data.rollouts[0]
    segment = view.segments[0]
    run = replace(segment.runs[0], texts=[HOSTILE] * len(segment.runs[0].ids))
    hostile = replace(
        data,
        run=HOSTILE,
        problems=[HOSTILE],
        evaluations=[
            Evaluation(name="x", label=HOSTILE, pass_at_1=interval, by_tier={HOSTILE: interval}, outcomes={"solved": 1})
        ],
        corpus={HOSTILE: {HOSTILE: HOSTILE, "list": [HOSTILE], "number": 3}},
        timing={HOSTILE: 3.0},
        configs={HOSTILE: HOSTILE},
        rollouts=[
            replace(
                view, rollout_id=HOSTILE, task_id=HOSTILE, detail=HOSTILE, seconds={HOSTILE: 1.0}, counts={HOSTILE: 1},
                segments=[replace(segment, versions=[HOSTILE], runs=[run])],
            )
        ],
    )  # fmt: skip
    if hostile.pretrain is not None:
        hostile.pretrain = replace(hostile.pretrain, phase=[HOSTILE] * len(hostile.pretrain.step))
    read = Page(render(hostile))
    assert (read.count("script"), read.count("img"), read.count("style")) == (1, 0, 1)
    assert all(not name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert sum(HOSTILE in text for text in read.texts.values()) > 5, "shown, as text"


def test_the_page_stands_alone_and_is_small(page: str) -> None:
    read = Page(page)
    for name, attributes in read.tags:
        assert name not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "href", "srcset", "action", "xlink:href"} & attributes.keys()
    assert "@import" not in page and "url(" not in page and "fetch(" not in page
    policy = next(attributes["content"] for name, attributes in read.tags if "http-equiv" in attributes)
    assert policy is not None and policy.startswith("default-src 'none'")
    assert len(page.encode()) < 1_500_000


def test_every_chart_says_what_it_is(page: str) -> None:
    read = Page(page)
    charts = read.count("svg")
    assert charts >= 20
    assert read.count("figcaption") == read.count("h3") == read.count("figure") == charts
    labels = [attributes["aria-label"] for name, attributes in read.tags if name == "svg"]
    assert all(labels)


def test_a_stage_that_did_not_measure_says_so(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "rl" / "metrics.jsonl").write(0, reward_mean=0.5)
    read = Page(render(collect(tmp_path)))
    assert read.texts["p"].count("not measured in this run") >= 10
    assert read.count("svg") == 1


def test_an_empty_run_is_a_page_too(tmp_path: Path) -> None:
    read = Page(render(collect(tmp_path)))
    assert "Nothing has been measured yet" in read.texts["p"]
    assert (read.count("svg"), read.numbers) == (0, {})


def test_the_page_is_written_into_the_run_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("timing",))
    path = write_report(run)
    assert path == run / "report.html"
    assert path.read_text(encoding="utf-8") == render(collect(run))
    with pytest.raises(UserError, match="no such run folder"):
        write_report(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_the_same_run_makes_the_same_page(run_dir: Path, page: str) -> None:
    assert render(collect(run_dir)) == page
