"""The four commands as functions, and all of them in a row.

Invariant: each stage does what is missing of it and nothing else, so running any of them, or all, again after a kill or
a Ctrl-C goes on where it stopped.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from etude.config import load_config, to_toml
from etude.config.jobs import CorpusJob, EvalJob, PretrainJob, RLJob
from etude.corpus import CorpusReport, Tokenizer, build_corpus
from etude.evaluate.runner import EvalResult
from etude.observe import progress
from etude.records import Segment, write_atomic
from etude.tasks.katas import KataSource, Split

T = TypeVar("T")

TOKENIZER_PROMPTS = 2000  # task prompts that the tokenizer sees beside the corpus
HELD_OUT_DEMONSTRATIONS = 200


def build_corpus_stage(job: CorpusJob) -> CorpusReport:
    """`etude corpus build`."""
    source = KataSource(job.katas, Split.TRAIN)
    prompts = [source.kata(index).prompt for index in range(TOKENIZER_PROMPTS)]
    out = Path(job.run) / "corpus"
    with progress("corpus: reading, cleaning, tokenising", 1.0) as update:
        report = build_corpus(job.corpus, out, prompts, update)
    write_atomic(Path(job.run) / "corpus.toml", to_toml(job))
    return report


def pretrain_stage(job: PretrainJob) -> Path:
    """`etude pretrain`; returns the folder of the model."""
    from etude.pretrain import pretrain, write_demonstrations

    def demonstrations(tokenizer: Tokenizer, held_out: bool) -> list[Segment]:
        split = Split.HELD_OUT if held_out else Split.TRAIN
        count = HELD_OUT_DEMONSTRATIONS if held_out else job.pretrain.demonstrations
        return write_demonstrations(tokenizer, job.katas, job.demonstrator, job.agent, split, count)

    run = Path(job.run)
    write_atomic(run / "pretrain" / "config.toml", to_toml(job))
    return pretrain(job.pretrain, run / "corpus", run / "pretrain", demonstrations)


def rl_stage(job: RLJob) -> Path:
    """`etude rl`; returns the folder of the trained model."""
    from etude.runtime.rl_job import reinforce

    return reinforce(job)


def eval_stage(job: EvalJob) -> list[EvalResult]:
    """`etude eval`."""
    from etude.evaluate.job import evaluate_run

    return evaluate_run(job)


@dataclass(frozen=True)
class QuickstartResult:
    """The run folder and what its checkpoints reached."""

    run: Path
    evaluations: list[EvalResult]


def quickstart(configs: Path) -> QuickstartResult:
    """All stages in a row. `configs` holds corpus, pretrain, rl and eval.toml; all are read before the first starts."""
    corpus = load_config(CorpusJob, configs / "corpus.toml")
    pretrain = load_config(PretrainJob, configs / "pretrain.toml")
    rl = load_config(RLJob, configs / "rl.toml")
    evaluate = load_config(EvalJob, configs / "eval.toml")
    run = Path(corpus.run)
    _timed(run, "corpus", lambda: build_corpus_stage(corpus))
    _timed(run, "pretrain", lambda: pretrain_stage(pretrain))
    _timed(run, "rl", lambda: rl_stage(rl))
    return QuickstartResult(run, _timed(run, "eval", lambda: eval_stage(evaluate)))


def _timed(run: Path, name: str, stage: Callable[[], T]) -> T:
    """Run a stage and add its seconds, interrupted or not, to `timing.json`."""
    began = time.perf_counter()
    try:
        return stage()
    finally:
        path = run / "timing.json"
        spent = json.loads(path.read_text()) if path.exists() else {}
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
        write_atomic(path, json.dumps(spent, indent=1))
