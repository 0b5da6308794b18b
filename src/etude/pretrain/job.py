"""`etude pretrain`: corpus and demonstrations in, two Hugging Face folders out.

Invariant: `bulk/` and `sft/` appear only when their phase is finished; running the job again does what is missing.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from etude.config.pretrain import PretrainConfig
from etude.corpus import Tokenizer, load_shards
from etude.models import build_model, cast_model, load_model, save_model, use_threads
from etude.observe import MetricsLog, progress
from etude.pretrain.loop import Phase, run_phase
from etude.pretrain.rows import Rows, corpus_rows, demonstration_rows
from etude.records import Segment

HELD_OUT_ROWS = 64


def pretrain(
    config: PretrainConfig,
    corpus: Path,
    out: Path,
    demonstrations: Callable[[Tokenizer, bool], Sequence[Segment]],
) -> Path:
    """Run what is missing of both phases and return the folder of the final model.

    demonstrations(tokenizer, held_out): segments to imitate; asked only when the phase that needs them runs.
    """
    use_threads(config.threads)
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    bulk, sft = out / "bulk", out / "sft"
    metrics_file = out / "metrics.jsonl"

    def log(step: int | None) -> MetricsLog:
        return MetricsLog(metrics_file, resume_from=step)

    bulk_phase = Phase(
        "bulk",
        config.bulk,
        corpus_rows(load_shards(corpus, "train")),
        _first(corpus_rows(load_shards(corpus, "held_out"))),
        first_step=0,
    )
    if not bulk.exists():
        model = _initial_model(config, tokenizer)
        with progress("pretrain: bulk phase on code", 1.0) as update:
            run_phase(model, bulk_phase, config, out / "bulk.pt", log, update)
        _finish(model, tokenizer, bulk)
    if not sft.exists():
        model = load_model(bulk, config.dtype)
        length = bulk_phase.rows.ids_NS.shape[1]
        with progress("pretrain: writing demonstrations", 1.0) as update:
            rows = demonstration_rows(demonstrations(tokenizer, False), length, config.sft.prompt_weight)
            held_out = _first(demonstration_rows(demonstrations(tokenizer, True), length, prompt_weight=0.0))
            update(1.0, f"{len(rows):,} rows of {length} tokens")
        phase = Phase("sft", config.sft, rows, held_out, first_step=bulk_phase.steps)
        with progress("pretrain: demonstrations", 1.0) as update:
            run_phase(model, phase, config, out / "sft.pt", log, update)
        _finish(model, tokenizer, sft)
    return sft


def _initial_model(config: PretrainConfig, tokenizer: Tokenizer) -> PreTrainedModel:
    if config.init is not None:
        return load_model(config.init, config.dtype)
    return cast_model(build_model(config.model, tokenizer.vocab_size, config.seed), config.dtype)


def _finish(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    save_model(model, folder, tokenizer.save)
    folder.with_suffix(".pt").unlink(missing_ok=True)


def _first(rows: Rows) -> Rows:
    return rows.take(np.arange(min(HELD_OUT_ROWS, len(rows))))
