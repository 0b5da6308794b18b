"""Progress is a bar on a terminal and one plain line everywhere else; notes are text, never markup."""

import io
import sys

import pytest
from rich.console import Console

from etude.observe import progress


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> str:
    stream = io.StringIO()
    module = sys.modules["etude.observe.progress"]  # the package hands on the function under the same name
    monkeypatch.setattr(module, "console", Console(file=stream, force_terminal=terminal, width=200))
    with progress("sampling [rl]", total=4) as update:
        update(1)
        update(4, "reward [/] 0.5")
    return stream.getvalue()


def test_without_a_terminal_one_plain_line_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=False) == "sampling [rl]: reward [/] 0.5\n"


def test_on_a_terminal_the_bar_shows_the_note_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "reward [/] 0.5" in shown(monkeypatch, terminal=True)
