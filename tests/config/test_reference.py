"""The page of all keys is the classes' own; every key says what it is; limits and windows hold."""

from pathlib import Path

import pytest

from etude.config import Config, load_config
from etude.config.jobs import EvalJob, RLJob
from etude.config.pretrain import PretrainConfig
from etude.records import UserError
from tests.config.reference import END, JOBS, PAGE, START, docs_of, nested, tables

EXAMPLES = Path(__file__).parents[2] / "examples"


def classes() -> list[type[Config]]:
    found: list[type[Config]] = list(JOBS.values())
    for cls in found:
        for field in cls.model_fields.values():
            found += [inner for inner, _ in nested(field.annotation) if inner not in found]
    return found


def test_the_page_holds_the_table_of_every_key() -> None:
    written = PAGE.read_text(encoding="utf-8").split(START)[1].split(END)[0]
    assert written == tables(), "run `python -m tests.config.reference`"
    for cls in classes():
        for name in cls.model_fields:
            assert f"| `{name}` |" in written


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_every_key_is_followed_by_its_meaning(cls: type[Config]) -> None:
    docs = docs_of(cls)
    assert docs.keys() == cls.model_fields.keys()
    assert all(line.endswith(".") and len(line) > 5 for line in docs.values())


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.toml")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_example_loads(path: Path) -> None:
    assert load_config(JOBS[path.name], path)


def refused(cls: type[Config], tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.toml"
    path.write_text(f'run = "x"\n{text}')
    with pytest.raises(UserError) as caught:
        load_config(cls, path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rl.steps", 0), ("rl.group_size", 1), ("rl.group_size", 65), ("rl.groups_per_step", 0),
        ("rl.max_staleness", -1), ("rl.temperature", 0.0), ("rl.checkpoint_every", 0), ("rl.importance_cap", 0.0),
        ("rl.micro_tokens", 0), ("runtime.workers", 0), ("runtime.group_timeout_s", 0.0), ("engine.slots", 0),
        ("agent.max_turns", 0), ("agent.max_summaries", -1),
    ],
)  # fmt: skip
def test_a_value_outside_its_limits_is_refused(tmp_path: Path, key: str, value: float) -> None:
    """Fault 24, zero in a formula: none of these could make a run that ends."""
    text = f"{key} = {value}" if key.startswith("rl.") else f"rl = {{}}\n{key} = {value}"
    assert f"{key}: Input should be " in refused(RLJob, tmp_path, text)


@pytest.mark.parametrize("cls", [RLJob, EvalJob])
def test_a_window_that_the_engine_cannot_hold_is_refused(tmp_path: Path, cls: type[Config]) -> None:
    text = ("rl = {}\n" if cls is RLJob else "") + "agent.context = 300\nengine.context = 299"
    assert "engine.context = 299 is below agent.context = 300" in refused(cls, tmp_path, text)


def test_a_window_without_room_for_a_turn_is_refused(tmp_path: Path) -> None:
    text = "agent.context = 101\nagent.max_action = 24\nagent.max_observation = 40\nagent.max_summary = 32"
    assert "context = 101 holds no turn, request and summary of 101 tokens" in refused(EvalJob, tmp_path, text)


def test_more_experts_for_a_token_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="experts_per_token = 3 of only 2 experts"):
        PretrainConfig(model={"experts": 2, "experts_per_token": 3})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dense_layers = 5 of only 4 layers"):
        PretrainConfig(model={"layers": 4, "dense_layers": 5})  # type: ignore[arg-type]
