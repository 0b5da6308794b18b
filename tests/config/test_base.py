"""A config holds what its file says, each value of its declared type; every mistake is one error that helps."""

from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from etude.config import Config, load_config, to_toml
from etude.records import UserError


class Correction(StrEnum):
    CLIP = "clip"
    MASK = "mask"


class Inner(Config):
    group_size: int = Field(8, gt=0)
    correction: Correction = Correction.CLIP
    regions: tuple[str, ...] = ()


class Outer(Config):
    name: str
    rate: float = 1e-6
    shuffle: bool = True
    folder: Path = Path("runs/a")
    limit: int | None = None
    rl: Inner = Inner()


def load(tmp_path: Path, text: str, *overrides: str) -> Outer:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(Outer, path, overrides)


def test_values_and_defaults_are_read(tmp_path: Path) -> None:
    config = load(tmp_path, 'name = "x"\nrate = 1\nlimit = 3\n[rl]\ncorrection = "mask"\nregions = ["a", "b"]\n')
    inner = Inner(correction=Correction.MASK, regions=("a", "b"))
    assert config == Outer(name="x", rate=1.0, limit=3, rl=inner)
    assert isinstance(config.rate, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"\nrat = 1.0', "rat: unknown key; did you mean rate?"),
        ('name = "x"\n[rl]\ngroupsize = 3', "rl.groupsize: unknown key; did you mean group_size?"),
        ('name = "x"\nzzz = 1.0', "zzz: unknown key; remove it"),
        ("rate = 1.0", "name: missing; it has no default"),
        ("name = 5", "name: Input should be a valid string (got 5)"),
        ('name = "x"\n[rl]\ngroup_size = 0', "rl.group_size: Input should be greater than 0 (got 0)"),
        ('name = "x"\n[rl]\ngroup_size = "8"', "rl.group_size: expected an integer, got '8'"),
        ('name = "x"\n[rl]\ngroup_size = true', "rl.group_size: expected an integer, got True"),
        ('name = "x"\n[rl]\ngroup_size = 8.0', "rl.group_size: expected an integer, got 8.0"),
        ('name = "x"\nshuffle = 1', "shuffle: expected true or false, got 1"),
        ('name = "x"\nshuffle = "yes"', "shuffle: expected true or false, got 'yes'"),
        ('name = "x"\nrate = "1e-6"', "rate: expected a number, got '1e-6'"),
        ('name = "x"\n[rl]\ncorrection = "no"', "rl.correction: Input should be 'clip' or 'mask' (got 'no')"),
        ('name = "x"\nrl = 3', "rl: Input should be a valid dictionary or instance of Inner (got 3)"),
        ('name = "x', "not valid TOML"),
    ],
)
def test_every_mistake_is_one_error_that_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'run.toml'}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"name: missing.*; rat: unknown key"):
        load(tmp_path, "rat = 1.0")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.toml: no such config file; start from one of examples"):
        load_config(Outer, tmp_path / "absent.toml")
    with pytest.raises(UserError, match="cannot read the config file: Is a directory"):
        load_config(Outer, tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"name = '\xff\xfe'")
    with pytest.raises(UserError, match=r"binary\.toml: not a text file"):
        load_config(Outer, tmp_path / "binary.toml")


def test_overrides_reach_nested_keys_and_win_over_the_file(tmp_path: Path) -> None:
    text = 'name = "x"\n[rl]\ngroup_size = 2\n'
    config = load(
        tmp_path, text, "rl.group_size=16", "rl.correction=mask", 'rl.regions=["a"]', "name=two words", "rate=2"
    )
    assert config == Outer(
        name="two words", rate=2.0, rl=Inner(group_size=16, correction=Correction.MASK, regions=("a",))
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.group_size", "expected key=value"),
        ("=3", "expected key=value"),
        ("rl..group_size=3", "expected key=value"),
        ("name.first=3", "name is a value in the file, not a table"),
        ("rl.group=3", "did you mean group_size?"),
        ("rl.group_size=many", "rl.group_size"),
    ],
)
def test_a_wrong_override_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, 'name = "x"', override)
    assert message in str(caught.value)


configs = st.builds(
    Outer,
    name=st.text(),
    rate=st.floats(allow_nan=False),
    shuffle=st.booleans(),
    folder=st.just(Path("a/b c")),
    limit=st.none() | st.integers(-(2**63), 2**63 - 1),
    rl=st.builds(
        Inner,
        group_size=st.integers(1, 2**31),
        correction=st.sampled_from(Correction),
        regions=st.lists(st.text(), max_size=3).map(tuple),
    ),
)


@given(configs)
def test_the_resolved_file_reads_back_as_the_same_config(
    tmp_path_factory: pytest.TempPathFactory, config: Outer
) -> None:
    path = tmp_path_factory.getbasetemp() / "resolved.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert load_config(Outer, path) == config


def test_a_config_cannot_be_changed() -> None:
    config = Outer(name="x")
    with pytest.raises(ValidationError, match="frozen"):
        config.rate = 2.0  # type: ignore[misc]
