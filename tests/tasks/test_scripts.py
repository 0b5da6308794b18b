"""The trusted evaluator and the real programs say the same, for faulty, right and broken files."""

import random
from pathlib import Path

import pytest

from etude.config.tasks import DemonstratorConfig, KatasConfig
from etude.tasks import apply_edit
from etude.tasks.katas import Kata, KataSource, Split, demonstrate
from tests.tasks.fakes import run

SOURCE = KataSource(KatasConfig(tiers=(1.0, 1.0, 1.0, 1.0)), Split.TRAIN)
BROKEN = {
    "syntax": "def f(a:\n    return a\n",
    "no function": "x = 1\n",
    "error at import": "y = x\n",
    "wrong number of parameters": "def f():\n    return 1\n",
    "division": "def f(*args):\n    return 1 // 0\n",
    "a bool is no int": "def f(*args):\n    return True\n",
    "changed arguments": "def f(xs, *rest):\n    xs.append(1)\n    return xs\n",
}


def put(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).write_text(text)


def really_run(folder: Path, kata: Kata, source: str) -> tuple[str, int, bool]:
    """What the examples print and exit with, and whether the hidden tests pass, in processes of their own."""
    task = kata.task()
    put(folder, {**task.files, **task.tests, "kata.py": source})
    shown = run(folder, ("python", "examples.py"), 10)
    return shown.output, shown.code, run(folder, task.command, 10).code == 0


def check(folder: Path, kata: Kata, source: str) -> None:
    output, code, passed = really_run(folder, kata, source)
    assert kata.examples_output(source) == output
    assert code == (0 if output == "ok\n" else 1)
    assert kata.passes(source) == passed


def test_the_evaluator_agrees_with_the_programs_on_generated_files(tmp_path):
    rng = random.Random(0)
    for index in range(18):
        kata = SOURCE.kata(index)
        text = kata.source
        for move in demonstrate(kata, rng, DemonstratorConfig(right=0.3)):
            if move.tool == "edit":
                text = apply_edit(text, int(move.args[0]), *move.args[1:])
        for source in {kata.source, kata.solution, text}:
            check(tmp_path, kata, source)


@pytest.mark.parametrize("name", BROKEN)
def test_the_evaluator_agrees_with_the_programs_on_broken_files(tmp_path, name):
    kata = next(kata for kata in map(SOURCE.kata, range(100)) if kata.program.parameters == ("xs",))
    check(tmp_path, kata, BROKEN[name])


def test_a_file_edited_twice_within_a_second_is_not_run_from_a_stale_cache(tmp_path):
    kata = next(
        kata for kata in map(SOURCE.kata, range(100)) if len(kata.source) == len(kata.solution)
    )  # Python tells versions of a file apart by seconds and size
    for source in (kata.source, kata.solution) * 3:
        put(tmp_path, {**kata.task().files, "kata.py": source})
        assert run(tmp_path, ("python", "examples.py"), 10).output == kata.examples_output(source)
    assert not (tmp_path / "__pycache__").exists()
