"""A run folder with numbers like those of a small real run, written by seed; stages can be left out."""

import json
import math
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from etude.evaluate.stats import bootstrap_mean
from etude.observe import MetricsLog
from etude.records import Origin, Outcome, PolicyVersion, Rollout, Segment, VersionSpan, write_atomic
from etude.records.ledger import Disposition, LedgerEntry, ledger_files, ledger_path, query, write_ledger

STAGES = ("corpus", "pretrain", "ledger", "rl", "eval", "timing", "configs")
STEPS, GROUPS, GROUP = 40, 4, 8
LAYERS, TOP_K, EXPERTS = 3, 2, 8

PROMPT = """<|task|>
Fix the failing test in /work/stats.py. Run `python -m pytest -q` to see it.
<|end|>
"""
WORK = """I will look at the file first.
<|call|>read {"path": "stats.py"}<|end|>
"""
SEEN = """<|result|>
def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values) - 1
<|end|>
"""
FIX = """The mean subtracts one for no reason: <script>alert('x')</script> & "quotes" stay text.
<|call|>edit {"path": "stats.py", "old": "len(values) - 1", "new": "len(values)"}<|end|>
<|call|>run {"command": "python -m pytest -q"}<|end|>
"""
PASSED = """<|result|>
3 passed in 0.02s
<|end|>
"""
FAILED = """<|result|>
E   assert 1.5 == 2.5
1 failed, 2 passed in 0.03s
<|end|>
"""
ASK = "<|summarize|>Summarize your work so far.<|end|>\n"
SUMMARY = "stats.py: mean() is off by one; the fix is to drop the `- 1`. Next: edit and run the tests. naïve café ✓\n"


def make_run(folder: Path, stages: tuple[str, ...] = STAGES, seed: int = 0) -> Path:
    """Write the stages into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for stage in stages:
        {
            "corpus": _corpus,
            "pretrain": _pretrain,
            "rl": _rl,
            "ledger": _ledger,
            "eval": _eval,
            "timing": _timing,
            "configs": _configs,
        }[stage](folder, rng)
    return folder


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|task|>", "<|end|>", "<|call|>", "<|result|>", "<|summarize|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROMPT, WORK, SEEN, FIX, PASSED, FAILED, ASK, SUMMARY] * 3, trainer)
    return tokenizer


def _corpus(folder: Path, rng: np.random.Generator) -> None:
    manifest = {
        "name": "python standard library and site-packages",
        "files": 4187,
        "dropped": {"near_duplicate": 212, "generated": 61, "too_long": 18, "licence": 9},
        "documents": 3887,
        "tokens": 9_412_553,
        "splits": {"train": {"documents": 3811, "tokens": 9_226_000}, "held_out": {"documents": 76, "tokens": 186_553}},
        "deduplicated": True,
    }
    write_atomic(folder / "corpus" / "manifest.json", json.dumps(manifest))
    write_atomic(folder / "corpus" / "tokenizer" / "tokenizer.json", _tokenizer().to_str())


def _pretrain(folder: Path, rng: np.random.Generator) -> None:
    log = MetricsLog(folder / "pretrain" / "metrics.jsonl")
    for step in range(0, 300, 2):
        sft = step >= 240
        at = step - 240 if sft else step
        loss = (0.9 + 1.1 * math.exp(-at / 25) if sft else 2.6 + 4.9 * math.exp(-at / 60)) + rng.normal(0, 0.05)
        log.write(
            step,
            phase="sft" if sft else "bulk",
            loss=loss,
            held_out_loss=loss + 0.08 if step % 40 == 38 else None,
            tokens=(step + 1) * 8192,
            tokens_per_s=21_000 + rng.normal(0, 700),
            lr=3e-3 * min(1, (at + 1) / 20) * (1 - at / 300),
        )


def _rl(folder: Path, rng: np.random.Generator) -> None:
    log = MetricsLog(folder / "rl" / "metrics.jsonl")
    trained = _trained_tokens(folder)
    for step in range(STEPS):
        solved = 0.32 + 0.42 * (1 - math.exp(-step / 14)) + rng.normal(0, 0.035)
        shadow = step % 5 == 0
        sampled = int(52_000 + rng.normal(0, 2500))
        train, wait = 4.1 + rng.normal(0, 0.2), max(0.05, rng.normal(0.9, 0.5))
        log.write(
            step,
            reward_mean=solved, solved_rate=solved, loss=rng.normal(0, 0.02), grad_norm=abs(rng.normal(0.6, 0.15)),
            kl_k1=abs(rng.normal(2e-3, 1e-3)), k3_replay=abs(rng.normal(3e-6, 1e-6)),
            k3_live=abs(rng.normal(9e-4, 2e-4)) if shadow else None, logp_gap_p99=abs(rng.normal(0.02, 0.004)),
            ratio_clipped=abs(rng.normal(0.004, 0.002)), coverage=1.0,
            staleness_mean=min(2.0, abs(rng.normal(0.9, 0.2))), staleness_max=float(rng.integers(1, 3)),
            delta_bytes=int(31_000 + 600 * rng.normal()), full_bytes=2_412_544,
            delta_ratio=2_412_544 / 31_000 + rng.normal(), changed_share=0.021 + rng.normal(0, 0.001),
            groups_trained=2, groups_no_gradient=1, dropped_stale=0, infra_faults=0,
            rollouts_trained=2 * GROUP, tokens_sampled=sampled, tokens_trained=trained.get(step),
            sampled_tokens_per_s=sampled / (train + wait), step_s=train + wait + 0.4, train_s=train, wait_s=wait,
            turns_mean=4.2 + rng.normal(0, 0.2), summaries_per_rollout=0.12, sampled_per_rollout=410.0,
            tokens_per_solved=None if step == 7 else 410 / solved, seconds_per_solved=9.4 / solved,
            entropy=0.62 - 0.006 * step + rng.normal(0, 0.01), pause_s=0.06 + rng.random() * 0.02,
            publish_s=0.21 + rng.random() * 0.03,
        )  # fmt: skip


def _trained_tokens(folder: Path) -> dict[int, int]:
    """What the ledger says was trained, by step, so that the two accounts agree."""
    if not ledger_files(folder / "rl" / "ledger"):
        return {}
    sql = "SELECT step, sum(sampled_tokens)::BIGINT AS n FROM rollouts WHERE disposition = 'trained' GROUP BY step"
    return {row["step"]: row["n"] for row in query(folder / "rl" / "ledger", sql)}


def segment_of(tokenizer: Tokenizer, parts: list[tuple[Origin, str]], step: int, rng: np.random.Generator) -> Segment:
    """A segment from texts and their origins, sampled by the weights of `step`."""
    ids: list[int] = []
    origins: list[int] = []
    spans = []
    for origin, text in parts:
        encoded = tokenizer.encode(text).ids
        if origin is Origin.SAMPLED:
            spans.append(VersionSpan(len(ids), len(ids) + len(encoded), PolicyVersion(step, f"{step:08x}" * 4)))
        ids += encoded
        origins += [int(origin)] * len(encoded)
    origin_T = np.array(origins, "uint8")
    logprob_T = np.where(origin_T == Origin.SAMPLED, -rng.exponential(0.5, len(ids)), np.nan).astype("float32")
    routes_TLK = rng.integers(0, EXPERTS, (len(ids), LAYERS, TOP_K)).astype("int16")
    routes_TLK[-1] = -1
    return Segment(np.array(ids, "int32"), origin_T, logprob_T, routes_TLK, tuple(spans))


def rollout_of(
    tokenizer: Tokenizer, name: str, solved: bool, summary: bool, step: int, rng: np.random.Generator
) -> Rollout:
    """A rollout of one segment, or of two with a summary between them."""
    opening = [(Origin.PROMPT, PROMPT), (Origin.SAMPLED, WORK), (Origin.OBSERVATION, SEEN)]
    closing = [
        (Origin.SAMPLED, FIX),
        (Origin.OBSERVATION, PASSED if solved else FAILED),
        (Origin.SAMPLED, "Done.<|end|>"),
    ]
    contexts = [[*opening, *closing]]
    if summary:
        first = [*opening, (Origin.QUERY, ASK), (Origin.SAMPLED, SUMMARY)]
        contexts = [first, [(Origin.PROMPT, PROMPT), (Origin.COPIED, SUMMARY), *closing]]
    return Rollout(
        rollout_id=name,
        group_id=name.split("/")[0],
        task_id="katas-3f9c2a71d0b4e855",
        tier=1 + step % 3,
        attempt=0,
        segments=tuple(segment_of(tokenizer, parts, max(0, step - 1), rng) for parts in contexts),
        outcome=Outcome.SOLVED if solved else Outcome.FAILED,
        reward=1.0 if solved else 0.0,
        seconds={"model": 6.2, "tool": 1.4, "grade": 0.8},
        counts={"turns": 4, "summaries": int(summary)},
        detail="all tests passed" if solved else "test_mean failed: expected 2.5",
    )


def _ledger(folder: Path, rng: np.random.Generator) -> None:
    tokenizer = _tokenizer()
    for step in range(STEPS):
        entries = []
        for group in range(GROUPS):
            how = (Disposition.TRAINED, Disposition.TRAINED, Disposition.NO_GRADIENT, Disposition.STALE)[group]
            if group == 3 and step % 4:
                how = Disposition.INFRA
            for index in range(GROUP):
                rollout = rollout_of(
                    tokenizer, f"g{step * GROUPS + group}/{index}", bool(rng.random() < 0.5), index == 3, step, rng
                )
                if how is Disposition.INFRA:
                    rollout = replace(rollout, outcome=Outcome.INFRA_FAULT, reward=None, detail="machine lost")
                advantage = 0.5 if how is Disposition.TRAINED else None
                entries.append(LedgerEntry(rollout, step, how, advantage))
        write_ledger(ledger_path(folder / "rl" / "ledger", step), entries)


def _eval(folder: Path, rng: np.random.Generator) -> None:
    for name, label, rate in (("bulk", "continued pretraining", 0.07), ("sft", "SFT", 0.33), ("rl", "RL", 0.71)):
        per_task = {}
        tiers: dict[str, dict[str, list[float]]] = {"1": {}, "2": {}, "3": {}}
        for index in range(60):
            tier = str(1 + index % 3)
            chance = min(0.97, max(0.0, rate + 0.18 * (2 - int(tier))))
            per_task[f"katas-{index:03d}"] = tiers[tier][f"katas-{index:03d}"] = (
                (rng.random(2) < chance).astype(float).tolist()
            )
        solved = int(sum(map(sum, per_task.values())))
        result = {
            "name": name, "label": label, "step": 0, "digest": "ab" * 16, "temperature": 1.0, "tasks": 60, "samples": 2,
            "pass_at_1": vars_of(bootstrap_mean(per_task)),
            "by_tier": {tier: vars_of(bootstrap_mean(values)) for tier, values in tiers.items()},
            "tokens_per_solved": 48_000 / max(1, solved), "seconds_per_task": 1.9,
            "outcomes": {"solved": solved, "failed": 114 - solved, "overlong": 4, "agent_fault": 2},
            "per_task": per_task,
        }  # fmt: skip
        write_atomic(folder / "eval" / f"{name}.json", json.dumps(result))


def vars_of(interval: object) -> dict[str, float]:
    """The fields of an interval, as the evaluation writes them."""
    return {name: getattr(interval, name) for name in ("mean", "low", "high", "n")}


def _timing(folder: Path, rng: np.random.Generator) -> None:
    timing = {"corpus": 31.2, "pretrain": 128.4, "eval bulk": 12.1, "sft": 22.9, "eval sft": 14.0, "rl": 236.5}
    write_atomic(folder / "timing.json", json.dumps({**timing, "eval rl": 13.3}))


def _configs(folder: Path, rng: np.random.Generator) -> None:
    write_atomic(folder / "rl" / "config.toml", "[rl]\ngroup_size = 8\nlr = 1e-5\n")
    write_atomic(folder / "pretrain" / "config.toml", "[pretrain]\nsteps = 240\n# <b>not bold</b>\n")
