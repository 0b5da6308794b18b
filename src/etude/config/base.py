"""Loading and dumping of configs.

Invariant: a config object holds only keys that its class declares, each of the declared type, and
`load_config(to_toml(c)) == c`. Every mistake in a file becomes one `UserError` that names the file, the key,
what was expected and, for a misspelt key, the nearest known one.
"""

import difflib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from etude.records.errors import UserError


class Config(BaseModel):
    """Base of every config class: unknown keys fail, values are checked strictly, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


C = TypeVar("C", bound=Config)


def load_config(cls: type[C], path: str | Path, overrides: Sequence[str] = ()) -> C:
    """Read `path` as TOML, apply `overrides` (each `"a.b=value"`, value in TOML syntax or a bare string), validate.

    Raises UserError for a missing file, broken TOML, an unknown key, a wrong type or a malformed override.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file; start from one of examples/quickstart/*.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read the config file: {error.strerror}") from None
    for override in overrides:
        _apply_override(data, override)
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(_explain(cls, error))) from None


def to_toml(config: Config) -> str:
    """The resolved config, defaults included, as TOML. `None` has no TOML form, so such keys are left out."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _apply_override(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"-o {override}: expected key=value, for example -o rl.group_size=8")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string: `-o rl.correction=mask`
    node = data
    for key in keys[:-1]:
        node = node.setdefault(key, {})
        if not isinstance(node, dict):
            raise UserError(f"-o {override}: {key} is a value in the file, not a table")
    node[keys[-1]] = value


def _explain(cls: type[Config], error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(problem["loc"][-1]), _known_keys(cls, problem["loc"][:-1]), n=1)
            hint = f"; did you mean {near[0]}?" if near else "; remove it or see docs/config.md"
            yield f"{key}: unknown key{hint}"
        elif problem["type"] == "missing":
            yield f"{key}: missing; it has no default"
        else:
            yield f"{key}: {problem['msg']} (got {problem['input']!r})"


def _known_keys(cls: type[Config], path: tuple[int | str, ...]) -> list[str]:
    node: type[BaseModel] = cls
    for part in path:
        field = node.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        node = field.annotation
    return list(node.model_fields)
