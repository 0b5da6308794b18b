"""The house: floors, heavy imports, sizes and docstrings, read from the source itself.

Rooms that do not exist yet are simply not there; a room that the house does not know fails.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "etude"
FLOORS = (
    ("records", "config", "observe"),
    ("weights", "corpus", "models", "machines"),
    ("inference", "tasks"),
    ("agent", "rl", "pretrain"),
    ("audit", "capture", "evaluate", "report"),
    ("runtime",),
    ("cli",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
TORCH = ("models", "rl", "pretrain", "inference/local")  # the only places that may import torch or transformers
MODULES = sorted(SOURCE.rglob("*.py"))


class Import(NamedTuple):
    """`module` is imported at `line` of `path`; `lazy` inside a function, `typing` only for the type checker."""

    path: Path
    line: int
    module: str
    lazy: bool
    typing: bool


def name_of(path: Path) -> str:
    """src/etude/rl/loss.py -> rl/loss"""
    return path.relative_to(SOURCE).with_suffix("").as_posix()


def room_of(path: Path) -> str:
    return name_of(path).split("/")[0]


def imports(path: Path, text: str | None = None) -> Iterator[Import]:
    """Every import of a module, relative ones resolved, `from etude import x` seen as etude.x."""
    tree = ast.parse(path.read_text(encoding="utf-8") if text is None else text)
    stack: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while stack:
        node, lazy, typing = stack.pop()
        for name in _names(node, path):
            yield Import(path, node.lineno, name, lazy, typing)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            stack.append((child, lazy, typing or (guarded and child in node.body)))


def _names(node: ast.AST, path: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        package = ["etude", *path.relative_to(SOURCE).parts[:-1]]
        base = ".".join(filter(None, [*package[: len(package) - node.level + 1], base]))
    return [f"{base}.{alias.name}" for alias in node.names]


def to_rooms() -> Iterator[tuple[Import, str, str]]:
    """(import, importing room, imported room) for imports that cross rooms."""
    for path in MODULES:
        for found in imports(path):
            parts = found.module.split(".")
            room, other = room_of(path), parts[1] if parts[0] == "etude" and len(parts) > 1 else ""
            if room in FLOOR and other in FLOOR and other != room:
                yield found, room, other


def heavy(found: Import) -> str:
    return found.module.split(".")[0]


def where(found: Import) -> str:
    return f"{name_of(found.path)}.py:{found.line} imports {found.module}"


def test_every_room_is_known_to_the_house() -> None:
    assert MODULES, "no source found"
    assert {room_of(path) for path in MODULES} - {"__init__", "__main__"} <= set(FLOOR)


def test_a_lower_floor_never_imports_a_higher_one() -> None:
    wrong = [where(found) for found, room, other in to_rooms() if FLOOR[other] > FLOOR[room] and not found.typing]
    assert wrong == []


def test_rooms_of_one_floor_form_no_cycle() -> None:
    below: dict[str, set[str]] = defaultdict(set)
    for found, room, other in to_rooms():
        if FLOOR[room] == FLOOR[other] and not found.typing:
            below[room].add(other)

    def reaches(room: str, goal: str, seen: frozenset[str] = frozenset()) -> bool:
        return any(
            other == goal or (other not in seen and reaches(other, goal, seen | {other})) for other in below[room]
        )

    assert [room for room in FLOOR if reaches(room, room)] == []


def test_only_runtime_imports_ray() -> None:
    found = [found for path in MODULES if room_of(path) != "runtime" for found in imports(path)]
    assert [where(one) for one in found if heavy(one) == "ray"] == []


def test_only_rooms_that_compute_import_torch() -> None:
    """`weights` has kernels for a GPU: it may import torch inside a function, never at module level."""
    wrong = []
    for path in MODULES:
        name = name_of(path)
        allowed = any(name == room or name.startswith(room + "/") for room in TORCH)
        for found in imports(path):
            kernel = room_of(path) == "weights" and heavy(found) == "torch" and found.lazy
            if heavy(found) in ("torch", "transformers") and not (allowed or kernel or found.typing):
                wrong.append(where(found))
    assert wrong == []


def test_the_command_line_starts_without_the_rooms() -> None:
    """`etude --help` must not wait for torch: what cli imports at module level is the ground floor."""
    eager = [f for f, room, other in to_rooms() if room == "cli" and FLOOR[other] > 0 and not (f.lazy or f.typing)]
    assert [where(found) for found in eager] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_has_a_docstring_and_stays_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module's docstring states the invariant it keeps"
    assert len(text.splitlines()) <= 400
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    sizes = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: size for name, size in sizes.items() if size > 60} == {}


def test_the_reader_of_imports_sees_every_kind() -> None:
    """The other tests are only as good as this."""
    text = """
import torch.nn as nn
from etude import rl
from etude.models import build
from . import sibling
from ..weights import codec
def later():
    import ray
    lambda: __import__
class Box:
    from transformers import x
if TYPE_CHECKING:
    import torch
else:
    import numpy
"""
    seen = {(f.module, f.lazy, f.typing) for f in imports(SOURCE / "agent" / "loop.py", text)}
    assert seen == {
        ("torch.nn", False, False),
        ("etude.rl", False, False),
        ("etude.models.build", False, False),
        ("etude.agent.sibling", False, False),
        ("etude.weights.codec", False, False),
        ("ray", True, False),
        ("transformers.x", False, False),
        ("torch", False, True),
        ("numpy", False, False),
    }
