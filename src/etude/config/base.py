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
    """Base of every config class: unknown keys fail, defaults are checked too, instances are frozen.

    A field that may be None has the default None: TOML cannot say None, so a file could not ask for it otherwise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


_SCALARS: dict[type, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}

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
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file; a config is TOML in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read the config file: {error.strerror}") from None
    for override in overrides:
        _apply_override(data, override)
    try:
        config = cls.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(_explain(cls, error))) from None
    coerced = list(_coerced(data, config.model_dump(mode="json")))
    if coerced:
        raise UserError(f"{path}: " + "; ".join(coerced))
    return config


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


def _coerced(given: Any, held: Any, key: str = "") -> Iterator[str]:
    """Values that pydantic bent to their type: "8" or true for an int, 1 for a bool.

    Its own strict mode is of no use here: it refuses what TOML can only say with a list or a string (a tuple, a path,
    an enum), so the values as read are compared with the values as held.
    """
    if isinstance(given, dict) and isinstance(held, dict):
        for name, value in given.items():
            yield from _coerced(value, held.get(name), f"{key}.{name}" if key else name)
    elif isinstance(given, list) and isinstance(held, list):
        for index, pair in enumerate(zip(given, held, strict=False)):
            yield from _coerced(*pair, f"{key}.{index}")
    kinds = (type(given), type(held))
    if {*kinds} <= _SCALARS.keys() and kinds[0] is not kinds[1] and kinds != (int, float):  # 1 is a fine number
        yield f"{key}: expected {_SCALARS[type(held)]}, got {given!r}"


def _explain(cls: type[Config], error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(problem["loc"][-1]), _known_keys(cls, problem["loc"][:-1]), n=1)
            hint = f"; did you mean {near[0]}?" if near else "; remove it"
            yield f"{key}: unknown key{hint}"
        elif problem["type"] == "missing":
            yield f"{key}: missing; it has no default"
        else:
            yield f"{key}: {problem['msg']} (got {repr(problem['input'])[:80]})"


def _known_keys(cls: type[Config], path: tuple[int | str, ...]) -> list[str]:
    node: type[BaseModel] = cls
    for part in path:
        field = node.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        node = field.annotation
    return list(node.model_fields)
