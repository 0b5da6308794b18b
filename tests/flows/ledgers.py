"""Questions about a run folder that more than one test asks."""

from collections import Counter
from pathlib import Path
from typing import Any

from etude.records.ledger import Disposition, LedgerEntry, ledger_files, read_ledger
from etude.runtime.checkpoint import newest
from etude.weights import Chain

FINAL = (Disposition.TRAINED, Disposition.NO_GRADIENT, Disposition.STALE)


def entries_by_step(run: Path) -> dict[int, list[LedgerEntry]]:
    return {int(path.stem.split("-")[1]): read_ledger(path) for path in ledger_files(run / "rl" / "ledger")}


def digests_of_chain(run: Path) -> dict[int, str]:
    """Step to digest along the chain, from its head back to its base; each manifest starts where its parent ended."""
    chain = Chain(str(run / "rl" / "chain"))
    manifest = chain.head()
    digests: dict[int, str] = {}
    while manifest is not None:
        assert manifest.step not in digests
        digests[manifest.step] = manifest.digest
        parent = chain.read(manifest.parent) if manifest.parent else None
        if parent is not None:
            assert (parent.step, parent.digest) == (manifest.parent_step, manifest.parent_digest)
        manifest = parent
    return digests


def check_account(run: Path, steps: int, batch_size: int) -> None:
    """Every step trained one batch, no group was settled twice, what is settled is the committed position, and each
    token was sampled by weights that the chain names."""
    by_step = entries_by_step(run)
    assert sorted(by_step) == list(range(steps))
    digests = digests_of_chain(run)
    assert sorted(digests) == list(range(steps + 1))
    assert len(set(digests.values())) == steps + 1
    groups: Counter[str] = Counter()
    for step, entries in by_step.items():
        trained = [entry for entry in entries if entry.disposition is Disposition.TRAINED]
        assert len(trained) == batch_size
        assert {entry.step for entry in trained} == {step}
        groups.update({entry.rollout.group_id for entry in entries if entry.disposition in FINAL})
        for entry in entries:
            assert {digests[v.step] == v.digest for v in entry.rollout.versions} <= {True}
    assert set(groups.values()) == {1}
    saved: Any = newest(run / "rl" / "checkpoints")
    state = saved[1]
    assert state["version"] == steps
    settled = {int(group[1:]) for group in groups}
    assert settled == {*range(state["low"]), *state["above"]}
