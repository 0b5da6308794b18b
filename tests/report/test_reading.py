"""The rollouts shown are picked by rule, none twice, and hold exactly the ledger's tokens."""

from pathlib import Path

import numpy as np
from msgspec.structs import replace
from tokenizers import Tokenizer

from etude.records import Origin
from etude.records.ledger import ledger_files, ledger_path, read_ledger, write_ledger
from etude.report import ReportData
from etude.report.data import TokenRun
from etude.report.reading import LAYERS_SHOWN, TOKENS_SHOWN, pick_rollouts
from tests.report.reader import Page
from tests.report.synthetic import STEPS, make_run


def test_one_of_each_kind_is_picked(data: ReportData) -> None:
    solved, failed, first, last, summary = data.rollouts
    assert (solved.outcome, solved.step) == ("solved", STEPS - 1)
    assert (failed.outcome, failed.step) == ("failed", STEPS - 1)
    assert (first.step, last.step) == (0, STEPS - 1)
    assert len(summary.segments) == 2 and summary.outcome == "solved"
    assert len({(view.rollout_id, view.attempt, view.step) for view in data.rollouts}) == 5


def test_the_tokens_are_those_of_the_ledger(run_dir: Path, data: ReportData) -> None:
    entries = [entry for path in ledger_files(run_dir / "rl" / "ledger") for entry in read_ledger(path)]
    for view in data.rollouts:
        entry = next(e for e in entries if e.rollout.rollout_id == view.rollout_id)
        for shown, segment in zip(view.segments, entry.rollout.segments, strict=True):
            (run,) = shown.runs
            assert run.ids == segment.ids_T.tolist()
            assert run.origins == segment.origin_T.tolist()
            known = [value for value in run.logprobs if value is not None]
            np.testing.assert_allclose(known, segment.logprob_T[segment.sampled_T], atol=5e-5)
            assert [value is not None for value in run.logprobs] == segment.sampled_T.tolist()
            assert run.routes[:-1] == segment.routes_TLK[:-1].tolist()
            assert run.routes[-1] == [], "the last token was consumed by no pass"
            for span in segment.spans:
                assert {shown.versions[v] for v in run.versions[span.start : span.end]} == {str(span.version)}
            assert [v >= 0 for v in run.versions] == segment.sampled_T.tolist()


def test_texts_read_as_the_tokenizer_decodes_and_lone_bytes_as_ids(run_dir: Path, data: ReportData) -> None:
    tokenizer = Tokenizer.from_file(str(run_dir / "corpus" / "tokenizer" / "tokenizer.json"))
    seen_lone = False
    for view in data.rollouts:
        for segment in view.segments:
            for token, text in zip(segment.runs[0].ids, segment.runs[0].texts, strict=True):
                lone = "\ufffd" in tokenizer.decode([token], skip_special_tokens=False)
                assert text == (f"⟨{token}⟩" if lone else tokenizer.decode([token], skip_special_tokens=False))
                seen_lone |= lone
    whole = "".join(data.rollouts[0].segments[0].runs[0].texts)
    assert whole.startswith("<|task|>\nFix the failing test") and whole.endswith("Done.<|end|>")
    assert seen_lone, "the summary holds characters of several bytes"


def test_the_page_shows_each_token_once_in_order(data: ReportData, page: str) -> None:
    expected = []
    for view in data.rollouts:
        for segment in view.segments:
            for run in segment.runs:
                expected += [(token, text) for token, text in zip(run.ids, run.texts, strict=True)]
    shown = [(int(facts.split("|")[0]), text.replace("⏎\n", "\n")) for facts, text in Page(page).tokens]
    assert shown == expected


def test_without_a_tokenizer_tokens_are_ids(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("ledger",))
    views = pick_rollouts(run / "rl" / "ledger", run / "absent.json")
    tokens: TokenRun = views[0].segments[0].runs[0]
    assert tokens.texts == [f"⟨{token}⟩" for token in tokens.ids]


def test_a_long_rollout_of_a_deep_model_is_cut_and_says_so(tmp_path: Path) -> None:
    source = make_run(tmp_path / "run", ("ledger",)) / "rl" / "ledger"
    entry = read_ledger(ledger_path(source, 0))[0]
    (segment,) = entry.rollout.segments
    repeat = 1 + 3 * TOKENS_SHOWN // len(segment)
    unsampled_T = np.full(len(segment) * repeat, Origin.OBSERVATION, "uint8")
    unsampled_T[: len(segment)] = segment.origin_T
    logprob_T = np.full(len(unsampled_T), np.nan, "float32")
    logprob_T[: len(segment)] = segment.logprob_T
    routes_TLK = np.zeros((len(unsampled_T), 61, 8), "int16") + np.arange(61, dtype="int16")[:, None]
    ids_T = np.arange(len(unsampled_T), dtype="int32")
    long = replace(segment, ids_T=ids_T, origin_T=unsampled_T, logprob_T=logprob_T, routes_TLK=routes_TLK)
    write_ledger(ledger_path(tmp_path, 0), [replace(entry, rollout=replace(entry.rollout, segments=(long,)))])
    (view,) = pick_rollouts(tmp_path, tmp_path / "absent.json")
    (shown,) = view.segments
    head, tail = shown.runs
    assert head.ids + tail.ids == [*ids_T[: len(head.ids)].tolist(), *ids_T[-len(tail.ids) :].tolist()]
    assert len(head.ids) + len(tail.ids) == TOKENS_SHOWN == shown.tokens - shown.skipped
    assert (len(shown.layers), shown.layers[0], shown.layers[-1], shown.n_layers) == (LAYERS_SHOWN, 0, 60, 61)
    assert head.routes[0] == [[layer] * 8 for layer in shown.layers]
