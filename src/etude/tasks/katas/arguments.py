"""Arguments to call a kata with: small, distinct, and likely to tell a fault from its repair.

Invariant: every value stays within -9..9, strings within 4 characters, lists within 4 numbers.
"""

import random
from typing import Any

from etude.tasks.katas.evaluate import call_text
from etude.tasks.katas.expressions import Kind
from etude.tasks.katas.tokens import Program

_KINDS = {name: kind for kind in Kind for name in kind.value}
_WORDS = (
    *("cat", "Dog", "sun", "MAP", "top", "Red", "box", "a-b", "oO", "fan", "Egg", "hat", "ICE", "jam", "Key", "lot"),
    *("noon", "o-o", "pan", "Ray", "sea", "Tea", "van", "Zoo", "a+o", "b+b"),
)


def draw_arguments(rng: random.Random, program: Program, count: int) -> list[tuple[Any, ...]]:
    """At most `count` distinct tuples of arguments.

    Numbers that stand in the program, and equal neighbours, are favoured: `<` and `<=` differ nowhere else.
    """
    draw = rng.random
    constants = [int(token.text) for line in program.lines for token in line.tokens if token.text.strip().isdigit()]
    constants = constants or [0]

    def number(previous: Any) -> int:
        luck = draw()
        if luck < 0.2:
            return constants[int(draw() * len(constants))]
        if luck < 0.3 and type(previous) is int:
            return previous
        return int(draw() * 19) - 9

    def argument(kind: Kind, previous: Any) -> Any:
        if kind is Kind.INT:
            return number(previous)
        if kind is Kind.COUNT:
            return int(draw() * 8)
        if kind is Kind.STR:
            return _WORDS[int(draw() * len(_WORDS))]
        return [number(None) for _ in range(2 + int(draw() * 3))]

    found: dict[str, tuple[Any, ...]] = {}
    for _ in range(count):
        args: list[Any] = []
        for name in program.parameters:
            args.append(argument(_KINDS[name], args[-1] if args else None))
        found.setdefault(call_text(tuple(args)), tuple(args))
    return list(found.values())
