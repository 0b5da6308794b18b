"""Writing the body of a function line by line, each line with its clause.

Invariant: the clauses of a body are as many as its lines and come in their order.
"""

import random

from etude.tasks.katas.expressions import Expr, Kind, Scope, augmented, bound, pick, spaced_all
from etude.tasks.katas.tokens import FaultKind, Line, Program, Token

_STARTS = (" 0", " 1", " 2", " 3", " 4", " 5")


class Body:
    """Collects the lines of one function."""

    def __init__(self, rng: random.Random, *kinds: Kind) -> None:
        self.rng = rng
        self.scope = Scope(rng, kinds)
        self.lines: list[Line] = []

    def assign(self, name: str, value: Expr, kind: Kind, depth: int = 1) -> None:
        """`name = value`; declares a new name."""
        tokens = (Token(" " + name), Token(" ="), *spaced_all(value))
        self.lines.append(Line(depth, tokens, f"{name} is {value.words}", f"{name} is ?"))
        if name not in self.scope.names[kind]:
            self.scope.declare(kind, name)

    def give(self, value: Expr, depth: int = 1) -> None:
        """`return value`."""
        tokens = (Token(" return", FaultKind.RETURN), *spaced_all(value))
        self.lines.append(Line(depth, tokens, f"return {value.words}", "return ?"))

    def test(self, condition: Expr, depth: int = 1) -> None:
        """`if condition:`."""
        tokens = (Token(" if"), *spaced_all(condition), Token(":"))
        self.lines.append(Line(depth, tokens, f"if {condition.words}", "if ?"))

    def update(self, target: str, value: Expr, depth: int) -> None:
        """`target += value` and its kin."""
        change = augmented(self.rng, target, value)
        self.lines.append(Line(depth, spaced_all(change), change.words, f"change {target}"))

    def append(self, value: Expr, depth: int) -> None:
        """`out.append(value)`, or at the front."""
        calls = (".append(", ".insert(0,")
        call = pick(self.rng, calls[0], *calls)
        last = call == calls[0]
        inner = value.tokens if last else spaced_all(value)
        tokens = (Token(" out"), Token(call, FaultKind.CALL, calls), *inner, Token(")"))
        clause = f"append {value.words} to out" if last else f"put {value.words} first in out"
        self.lines.append(Line(depth, tokens, clause, "grow out"))

    def start(self, name: str, text: str) -> None:
        """`name = text`, a fresh value that a loop changes; no expression may use it before the loop is over."""
        number = text.isdigit()
        value = Token(" " + text, FaultKind.CONSTANT, _STARTS) if number else Token(" " + text)
        words = text if number else "empty list"
        self.lines.append(Line(1, (Token(" " + name), Token(" ="), value), f"{name} is {words}", f"{name} is ?"))

    def loop_over(self, name: str, expr: Expr) -> None:
        """`for name in expr:`; the loop variable is declared by `scope.inside`."""
        tokens = (Token(" for"), Token(" " + name), Token(" in"), *spaced_all(expr), Token(":"))
        self.lines.append(Line(1, tokens, f"for {name} in {expr.words}", f"for {name} in ?"))

    def loop_range(self) -> None:
        """`for i in range(...)` up to the parameter `n`."""
        self.scope.unused.discard("n")
        form = int(self.rng.random() * 4)
        inner: tuple[Token, ...]
        if form == 0:
            inner, words = (bound("n", "n + 1", "n - 1"),), "below n"
        elif form == 1:
            inner, words = (bound("n + 1", "n"),), "to n"
        else:
            low = pick(self.rng, "1", "2")
            others = ("0", "2") if low == "1" else ("1", "3")
            end = bound(" n + 1", " n") if form == 2 else bound(" n", " n + 1", " n - 1")
            inner = (bound(low, *others), Token(","), end)
            words = f"from {low} {'to' if form == 2 else 'below'} n"
        tokens = (Token(" for"), Token(" i"), Token(" in"), Token(" range"), Token("("), *inner, Token(")"), Token(":"))
        self.lines.append(Line(1, tokens, f"for i {words}", "for i in ?"))

    def program(self) -> Program | None:
        """None when a parameter or a variable is used by no line."""
        return None if self.scope.unused else Program(tuple(self.scope.parameters), tuple(self.lines))
