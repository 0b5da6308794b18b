"""A scripted agent that is wrong more often than right: its traces teach the tools, not the answers.

Invariants: every edit of a trace applies cleanly to the file as the trace has left it; a trace ends with `finish` and
has at most `MAX_MOVES` moves; wrong edits are spread over lines, places and replacements, so that none dominates.
"""

import random
from typing import NamedTuple

from etude.config.tasks import DemonstratorConfig
from etude.tasks.edits import apply_edit
from etude.tasks.katas.kata import Kata
from etude.tasks.katas.tokens import Edit, edit_for, mutations

MAX_MOVES = 6
_FAULTY_LINE = 0.5  # share of wrong edits made in the faulty line; the others in a random one
_TRIES = 50


class Move(NamedTuple):
    """One tool call. Tools: `view` (), `edit` (line, old, new), `run` (), `finish` ()."""

    tool: str
    args: tuple[str, ...] = ()


def demonstrate(kata: Kata, rng: random.Random, skill: DemonstratorConfig) -> list[Move]:
    """One trace. What `run` answers along it is `kata.examples_output` of the file at that point."""
    moves = [Move("view")] if rng.random() < skill.view else []
    edit = _choose_edit(kata, rng, skill.right, None)
    moves.append(_move(edit))
    if rng.random() < skill.run:
        moves.append(Move("run"))
        failed = kata.examples_output(apply_edit(kata.source, *edit)) != "ok\n"
        if failed and rng.random() < skill.retry:
            moves.append(_move(_reverse(edit)))
            moves.append(_move(_choose_edit(kata, rng, skill.right, edit)))
            if len(moves) < MAX_MOVES - 1:
                moves.append(Move("run"))
    moves.append(Move("finish"))
    return moves


def _choose_edit(kata: Kata, rng: random.Random, right: float, tried: Edit | None) -> Edit:
    """An edit of the faulty file: the fix with probability `right`, else a wrong one that was not `tried`."""
    if rng.random() < right and tried != kata.fix:
        return kata.fix
    for _ in range(_TRIES):
        edit = _draw_edit(kata, rng)
        if edit is not None and edit != tried and apply_edit(kata.source, *edit) != kata.solution:
            return edit
    return kata.fix  # a file with nothing else to change


def _draw_edit(kata: Kata, rng: random.Random) -> Edit | None:
    """A random mutation of the faulty file, first its line, then its place, then the replacement."""
    lines = kata.program.lines
    index = kata.fix.line - 2 if rng.random() < _FAULTY_LINE else int(rng.random() * len(lines))
    possible = list(mutations(lines[index], index))
    if not possible:
        return None
    place = rng.choice(sorted({(mutation.start, mutation.end) for mutation in possible}))
    mutation = rng.choice([mutation for mutation in possible if (mutation.start, mutation.end) == place])
    edits = edit_for(kata.program, mutation)
    return edits[0] if edits else None


def _reverse(edit: Edit) -> Edit:
    return Edit(edit.line, edit.new, edit.old)


def _move(edit: Edit) -> Move:
    return Move("edit", (str(edit.line), edit.old, edit.new))
