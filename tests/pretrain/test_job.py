"""Folders appear when their phase is finished; running the job again does what is missing and nothing else."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from etude.config.agent import AgentConfig
from etude.config.pretrain import PhaseConfig, PretrainConfig
from etude.config.tasks import DemonstratorConfig, KatasConfig
from etude.corpus import Tokenizer, build_corpus
from etude.models import load_model, weights_of
from etude.observe import read_metrics
from etude.pretrain import pretrain, write_demonstrations
from etude.records import Segment, UserError, encode
from etude.tasks.katas import Split
from etude.weights import state_digest
from tests.corpus.trees import config_of, small_tree
from tests.models.tiny import config as tiny_config

LENGTH = 320
PHASE = PhaseConfig(tokens=4 * LENGTH * 4, lr=1e-3, rows_per_step=4)
CONFIG = PretrainConfig(
    model=tiny_config("deepseek_v3", max_positions=LENGTH), bulk=PHASE, sft=PHASE, threads=1, checkpoint_every=2
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    build_corpus(config_of(small_tree(folder / "tree"), sequence_length=LENGTH), folder / "out", [])
    return folder / "out"


def demonstrations(tokenizer: Tokenizer, held_out: bool, count: int = 30) -> list[Segment]:
    split = Split.HELD_OUT if held_out else Split.TRAIN
    skill, agent = DemonstratorConfig(), AgentConfig(context=LENGTH, max_action=80)
    return write_demonstrations(tokenizer, KatasConfig(), skill, agent, split, count)


def never(tokenizer: Tokenizer, held_out: bool) -> Sequence[Segment]:
    raise AssertionError("the phase was run again")


def digest(folder: Path) -> str:
    return state_digest(weights_of(load_model(folder, "bfloat16"))).hex()


def test_both_phases_run_once(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "pretrain"
    assert pretrain(CONFIG, corpus, out, demonstrations) == out / "sft"
    assert sorted(path.name for path in out.iterdir()) == ["bulk", "metrics.jsonl", "sft"]
    rows = read_metrics(out / "metrics.jsonl")
    assert [(row["step"], row["phase"]) for row in rows] == [(0, "bulk"), (3, "bulk"), (4, "sft"), (7, "sft")]
    for folder in (out / "bulk", out / "sft"):
        assert Tokenizer.load(folder).digest == Tokenizer.load(corpus / "tokenizer").digest
    first = {folder: (digest(folder), os.stat(folder).st_mtime_ns) for folder in (out / "bulk", out / "sft")}
    assert first[out / "bulk"][0] != first[out / "sft"][0]
    assert pretrain(CONFIG, corpus, out, never) == out / "sft"
    assert first == {folder: (digest(folder), os.stat(folder).st_mtime_ns) for folder in (out / "bulk", out / "sft")}

    shutil.rmtree(out / "sft")  # only what is missing is done, and it comes out the same
    pretrain(CONFIG, corpus, out, demonstrations)
    assert digest(out / "sft") == first[out / "sft"][0]
    assert os.stat(out / "bulk").st_mtime_ns == first[out / "bulk"][1]
    assert [row["step"] for row in read_metrics(out / "metrics.jsonl")] == [0, 3, 4, 7]


def test_it_continues_from_a_model(corpus: Path, tmp_path: Path) -> None:
    pretrain(CONFIG, corpus, tmp_path / "first", demonstrations)
    start = tmp_path / "first" / "bulk"
    config = CONFIG.model_copy(update={"init": str(start), "bulk": PHASE.model_copy(update={"lr": 0.0})})
    pretrain(config.model_copy(update={"balance_rate": 0.0}), corpus, tmp_path / "second", demonstrations)
    assert digest(tmp_path / "second" / "bulk") == digest(start)


def test_a_missing_corpus_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="etude corpus build"):
        pretrain(CONFIG, tmp_path / "none", tmp_path / "out", never)
    assert not (tmp_path / "out").exists()


def test_demonstrations_depend_on_the_configuration_alone(corpus: Path) -> None:
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    first, second = ([encode(one) for one in demonstrations(tokenizer, False, 6)] for _ in range(2))
    assert first == second
    assert not {*first} & {encode(one) for one in demonstrations(tokenizer, True, 6)}
    fewer = [encode(one) for one in demonstrations(tokenizer, False, 3)]
    assert len(fewer) >= 3 and fewer == first[: len(fewer)]
