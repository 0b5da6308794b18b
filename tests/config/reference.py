"""The tables of docs/config.md, made from the config classes: `python -m tests.config.reference` writes them anew."""

import ast
import inspect
import itertools
import sys
import types
import typing
from pathlib import Path
from typing import Any

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from etude.config import Config
from etude.config.jobs import CorpusJob, EvalJob, PretrainJob, RLJob

PAGE = Path(__file__).parents[2] / "docs" / "config.md"
START, END = "<!-- keys: start -->\n", "<!-- keys: end -->\n"
JOBS = {"corpus.toml": CorpusJob, "pretrain.toml": PretrainJob, "rl.toml": RLJob, "eval.toml": EvalJob}
_SIGNS = {annotated_types.Ge: ">=", annotated_types.Gt: ">", annotated_types.Le: "<=", annotated_types.Lt: "<"}


def docs_of(cls: type[Config]) -> dict[str, str]:
    """The line that follows each field, by the field's name."""
    tree = ast.parse(inspect.getsource(cls))
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    return {
        before.target.id: " ".join(after.value.value.split())
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


def tables() -> str:
    """One table a class; jobs first, then the tables of a file in the order in which jobs name them."""
    titles: dict[type[Config], list[str]] = {job: [name] for name, job in JOBS.items()}
    waiting = list(JOBS.values())
    for cls in waiting:
        prefix = "" if cls in JOBS.values() else titles[cls][0].strip("[]") + "."
        for name, field in cls.model_fields.items():
            for inner, brackets in nested(field.annotation):
                titles.setdefault(inner, []).append(brackets.format(prefix + name))
                if inner not in waiting:
                    waiting.append(inner)
    return "\n".join(_table(", ".join(f"`{one}`" for one in dict.fromkeys(titles[cls])), cls) for cls in waiting)


def nested(annotation: Any) -> list[tuple[type[Config], str]]:
    """The config classes that a field holds, and how TOML heads such a table."""
    found = [(annotation, "[{}]"), *((one, "[[{}]]") for one in typing.get_args(annotation))]
    return [(one, head) for one, head in found if isinstance(one, type) and issubclass(one, Config)]


def _table(title: str, cls: type[Config]) -> str:
    docs = docs_of(cls)
    lines = [f"**{title}**: {inspect.getdoc(cls)}", "", "| key | default | meaning |", "|---|---|---|"]
    for name, field in cls.model_fields.items():
        lines.append(f"| `{name}` | {_default(name, field)} | {docs[name]}{_limits(field)} |".replace("\n", " "))
    return "\n".join([*lines, ""])


def _default(name: str, field: FieldInfo) -> str:
    if nested(field.annotation):
        return "see its table"
    if field.default is PydanticUndefined:
        return "needed"
    if field.default is None:
        return "none"
    value = field.default
    if isinstance(value, tuple):
        return f"{len(value)} of them" if len(str(value)) > 60 or isinstance(value[0], Config) else f"`{list(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _limits(field: FieldInfo) -> str:
    """What the type does not say already: bounds, and the words that a choice is made from."""
    bounds = [f"{_SIGNS[type(m)]} {next(iter(vars_of(m)))}" for m in field.metadata if type(m) in _SIGNS]
    choices = [one for part in _parts(field.annotation) for one in typing.get_args(part) if isinstance(one, str)]
    said = [*bounds, *([" or ".join(choices)] if choices else [])]
    return f" ({', '.join(said)})" if said else ""


def vars_of(bound: Any) -> list[Any]:
    return [getattr(bound, slot) for slot in ("ge", "gt", "le", "lt") if hasattr(bound, slot)]


def _parts(annotation: Any) -> list[Any]:
    return list(typing.get_args(annotation)) if isinstance(annotation, types.UnionType) else [annotation]


def page_with(text: str) -> str:
    """The page with its tables replaced."""
    head, rest = PAGE.read_text(encoding="utf-8").split(START)
    return head + START + text + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with(tables()), encoding="utf-8")
    sys.stdout.write(f"{PAGE} written\n")
