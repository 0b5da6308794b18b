"""Rollouts to read token by token, picked by rule so that the same run always shows the same ones.

Invariant: what is shown is what the ledger holds. Tokens are decoded one by one; one that is no text by itself (part of
a character, an id outside the vocabulary) is shown as its id; what is left out is counted.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from etude.records import MISSING_ROUTE, Segment, UserError
from etude.records.ledger import LedgerEntry, query, read_ledger
from etude.report.data import RolloutView, SegmentView, TokenRun

TOKENS_SHOWN = 1000  # of one rollout; at about 100 bytes a token five rollouts stay below half a megabyte
LAYERS_SHOWN = 8  # a model of 60 layers with 8 experts would take a kilobyte a token

_RULES = (
    ("the last solved one", "outcome = 'solved'", "step DESC"),
    ("the last failed one", "outcome IN ('failed', 'overlong', 'agent_fault')", "step DESC"),
    ("from the first step", "true", "step"),
    ("from the last step", "true", "step DESC"),
    ("with a summary", "n_segments > 1", "step DESC, outcome = 'solved' DESC"),
)


def pick_rollouts(ledger: Path, tokenizer: Path) -> list[RolloutView]:
    """One rollout a rule, none twice. Without a tokenizer file the tokens are shown as ids."""
    decode = _decoder(tokenizer)
    files: dict[str, list[LedgerEntry]] = {}
    picked: dict[tuple[str, str, int], str] = {}
    for why, condition, order in _RULES:
        rows = query(
            ledger,
            f"""SELECT filename, rollout_id, attempt FROM rollouts WHERE sampled_tokens > 0 AND {condition}
                ORDER BY {order}, rollout_id, attempt LIMIT {len(_RULES)}""",
        )
        keys = [(row["filename"], row["rollout_id"], row["attempt"]) for row in rows]
        fresh = next((key for key in keys if key not in picked), None)
        if fresh is not None:
            picked[fresh] = why
    views = []
    for (name, rollout_id, attempt), why in picked.items():
        if name not in files:
            files[name] = read_ledger(name)
        entry = next(e for e in files[name] if (e.rollout.rollout_id, e.rollout.attempt) == (rollout_id, attempt))
        views.append(_view(entry, why, decode))
    return views


def _decoder(path: Path) -> Callable[[int], str]:
    if not path.exists():
        return lambda token: f"⟨{token}⟩"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for any unreadable file
        raise UserError(f"{path}: not a tokenizer: {error}") from None

    @functools.cache
    def decode(token: int) -> str:
        if not 0 <= token < tokenizer.get_vocab_size():
            return f"⟨{token}⟩"
        text = tokenizer.decode([token], skip_special_tokens=False)
        return f"⟨{token}⟩" if not text or "\ufffd" in text else text

    return decode


def _view(entry: LedgerEntry, why: str, decode: Callable[[int], str]) -> RolloutView:
    rollout = entry.rollout
    budget = TOKENS_SHOWN // max(1, len(rollout.segments))
    return RolloutView(
        why=why,
        rollout_id=rollout.rollout_id,
        task_id=rollout.task_id,
        tier=rollout.tier,
        attempt=rollout.attempt,
        step=entry.step,
        disposition=entry.disposition.value,
        outcome=rollout.outcome.value,
        reward=rollout.reward,
        advantage=entry.advantage,
        detail=rollout.detail,
        seconds=rollout.seconds,
        counts=rollout.counts,
        sampled_tokens=rollout.sampled_tokens,
        segments=[_segment(segment, budget, decode) for segment in rollout.segments],
    )


def _segment(segment: Segment, budget: int, decode: Callable[[int], str]) -> SegmentView:
    total, n_layers = segment.routes_TLK.shape[:2]
    head = total if total <= budget else budget * 2 // 3
    tail = 0 if total <= budget else budget - head
    layers = np.unique(np.linspace(0, n_layers - 1, min(n_layers, LAYERS_SHOWN)).round().astype(int)).tolist()
    versions = list(dict.fromkeys(str(span.version) for span in segment.spans))
    version_T = np.full(total, -1)
    for span in segment.spans:
        version_T[span.start : span.end] = versions.index(str(span.version))
    pieces = [slice(0, head)] + ([slice(total - tail, total)] if tail else [])
    return SegmentView(
        tokens=total,
        skipped=total - head - tail,
        versions=versions,
        layers=layers,
        n_layers=n_layers,
        runs=[_run(segment, piece, layers, version_T, decode) for piece in pieces],
    )


def _run(
    segment: Segment, piece: slice, layers: list[int], version_T: np.ndarray, decode: Callable[[int], str]
) -> TokenRun:
    ids = segment.ids_T[piece].tolist()
    routes_TLK = segment.routes_TLK[piece][:, layers]
    recorded_T = (routes_TLK != MISSING_ROUTE).any(axis=(1, 2))
    return TokenRun(
        ids=ids,
        texts=[decode(token) for token in ids],
        origins=segment.origin_T[piece].tolist(),
        logprobs=[None if np.isnan(value) else round(float(value), 4) for value in segment.logprob_T[piece]],
        versions=version_T[piece].tolist(),
        routes=[rows.tolist() if known else [] for rows, known in zip(routes_TLK, recorded_T, strict=True)],
    )
