"""A commit is whole or absent, the newest whole one counts, and what is restored is proven."""

import json
from pathlib import Path

import pytest
import torch

from etude.config.rl import RLConfig
from etude.models import weights_of
from etude.records import UserError
from etude.rl import Trainer
from etude.runtime.checkpoint import load_trainer, newest, save_trainer
from etude.weights import state_digest
from tests.models.tiny import perturb, tiny

CONFIG = RLConfig(kl_beta=0.0)


def trainer(step: int) -> Trainer:
    """A trainer whose optimizer has moments, as after `step` steps."""
    made = Trainer(tiny(), CONFIG)
    for number in range(2):
        for parameter in made.model.parameters():
            parameter.grad = torch.full_like(parameter, 0.1 + number)
        made.optimizer.accumulate()
        made.optimizer.step(1e-2, 1.0)
    made.step = step
    return made


def digest(one: Trainer) -> str:
    return state_digest(weights_of(one.model)).hex()


def steps(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_restored_trainer_goes_on_bit_for_bit(tmp_path: Path) -> None:
    first = trainer(7)
    path = save_trainer(tmp_path, first, {"version": 7, "low": 3, "above": [5]})
    second = Trainer(tiny(), CONFIG)
    perturb(second.model)
    load_trainer(path, second)
    assert second.step == 7
    assert newest(tmp_path) == (path, {"version": 7, "low": 3, "above": [5]})
    for one in (first, second):
        for parameter in one.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        one.optimizer.step(1e-3, 1.0)
    assert digest(first) == digest(second)


def test_the_newest_counts_and_two_are_kept(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") is None
    for step in (2, 10, 9):
        save_trainer(tmp_path, trainer(step), {"version": step})
    assert steps(tmp_path) == ["step-000009", "step-000010"]
    found = newest(tmp_path)
    assert found is not None and found[1] == {"version": 10}


def test_fault_21_two_savers_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, optimizer and position are one folder that appears at once: a death while it is written leaves the
    one before, and nothing that looks like a newer one."""
    save_trainer(tmp_path, trainer(1), {"version": 1})
    for death in ("torch.save", "json.dumps"):
        with monkeypatch.context() as patch:
            patch.setattr(death, _die)
            with pytest.raises(KeyboardInterrupt):
                save_trainer(tmp_path, trainer(2), {"version": 2})
        assert steps(tmp_path) == ["step-000001"]
    found = newest(tmp_path)
    assert found is not None and found[1] == {"version": 1}


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_what_a_killed_process_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    save_trainer(tmp_path, trainer(1), {"version": 1})
    (tmp_path / ".step-000002.abcd").mkdir()  # what SIGKILL leaves of the atomic folder
    found = newest(tmp_path)
    assert found is not None and found[0].name == "step-000001"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("state.json", None),
        ("state.json", b""),
        ("state.json", b'{"digest": "00"}'),
        ("state.json", b"[]"),
        ("state.json", b"\xff\xfe"),
        ("trainer.pt", None),
        ("trainer.pt", b""),
        ("trainer.pt", b"PK\x03\x04 torn"),
    ],
)
def test_a_torn_checkpoint_is_named_with_what_to_do(tmp_path: Path, file: str, content: bytes | None) -> None:
    path = save_trainer(tmp_path, trainer(3), {"version": 3})
    (path / file).unlink()
    if content is not None:
        (path / file).write_bytes(content)
    with pytest.raises(UserError, match=f"{path}.*broken checkpoint .*delete .*to go on from the one before") as caught:
        newest(tmp_path)
        load_trainer(path, Trainer(tiny(), CONFIG))
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_those_of_the_digest_are_refused(tmp_path: Path) -> None:
    saved = trainer(3)
    path = save_trainer(tmp_path, saved, {"version": 3})
    state = json.loads((path / "state.json").read_text())
    assert state["digest"] == digest(saved) and state["step"] == 3
    perturb(saved.model)
    saved.optimizer.masters = [parameter.detach() for parameter in saved.model.parameters()]
    saved.save(path / "trainer.pt")
    with pytest.raises(UserError, match=f"restored weights have digest {digest(saved)}, .* says {state['digest']}"):
        load_trainer(path, Trainer(tiny(), CONFIG))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    path = save_trainer(tmp_path, trainer(3), {"version": 3})
    with pytest.raises(UserError, match="broken checkpoint"):
        load_trainer(path, Trainer(tiny(layers=2), CONFIG))
