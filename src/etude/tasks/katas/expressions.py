"""Expressions of katas: tokens on one side, controlled English on the other.

Invariant: each form has exactly one wording, and its words come in the order of its operands, so that a small model can
learn the mapping between clause and line.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple, TypeVar

from etude.tasks.katas.tokens import FaultKind, Token, spaced

T = TypeVar("T")


class Kind(Enum):
    """Type of a value; the member's value is the pool of parameter names."""

    INT = ("a", "b", "c", "k")
    COUNT = ("n",)  # an int that bounds a loop: always small and positive
    STR = ("s", "w")
    LIST = ("xs", "ys")


class Expr(NamedTuple):
    """Tokens of an expression, the first without a leading space, and its words."""

    tokens: tuple[Token, ...]
    words: str


_PLUS_MINUS_TIMES = ("+", "-", "*")
_WORDS = {"+": "plus", "-": "minus", "*": "times", "//": "over", "%": "mod"}
_COMPARISONS = {"<": "below", ">": "above", "<=": "at most", ">=": "at least", "==": "equals", "!=": "not"}
_AUGMENTED = ("+=", "-=", "*=")
_DIGITS = tuple("123456789")
TEXTS = ("'-'", "'+'", "' '", "'a'", "'o'")


class Scope:
    """The variables that a line may use. Picks those that no line has used yet with preference."""

    def __init__(self, rng: random.Random, kinds: tuple[Kind, ...]) -> None:
        self.rng = rng
        self.names: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self.parameters: list[str] = []
        for kind in kinds:
            name = next(name for name in kind.value if name not in self.parameters)
            self.parameters.append(name)
            self.names[kind].append(name)
        self.unused = set(self.parameters)

    def declare(self, kind: Kind, name: str) -> None:
        """From here on `name` may be used; the next expressions prefer it."""
        self.names[kind].append(name)
        self.unused.add(name)

    @contextmanager
    def inside(self, kind: Kind, name: str) -> Iterator[None]:
        """Declare a loop variable for the body of its loop."""
        self.declare(kind, name)
        yield
        self.names[kind].remove(name)

    def name(self, kind: Kind) -> Expr:
        """A variable of `kind`. Raises IndexError when there is none."""
        pool = self.names[kind]
        fresh = [name for name in pool if name in self.unused]
        name = self.rng.choice(fresh or pool)
        self.unused.discard(name)
        return Expr((Token(name, FaultKind.VARIABLE, tuple(pool)),), name)


def pick(rng: random.Random, *options: T) -> T:
    """One of `options`, all equally likely."""
    return options[int(rng.random() * len(options))]


def constant(rng: random.Random, low: int = 1) -> Expr:
    """An int from `low` to 9."""
    text = str(low + int(rng.random() * (10 - low)))
    return Expr((Token(text, FaultKind.CONSTANT, _DIGITS[low - 1 :]),), text)


def bound(text: str, *others: str) -> Token:
    """A bound of a range or slice, or an index: the others are off by one."""
    return Token(text, FaultKind.OFF_BY_ONE, (text, *others))


def spaced_all(expr: Expr) -> tuple[Token, ...]:
    """The tokens of `expr` after a space."""
    return (spaced(expr.tokens[0]), *expr.tokens[1:])


def operand(scope: Scope, avoid: str) -> Expr:
    """A variable other than `avoid` or a constant."""
    if scope.unused & set(scope.names[Kind.INT]) or (len(scope.names[Kind.INT]) > 1 and scope.rng.random() < 0.4):
        expr = scope.name(Kind.INT)
        if expr.words != avoid:
            return expr
    return constant(scope.rng)


def combine(scope: Scope, left: Expr, division: bool = True) -> Expr:
    """`left` combined by one operator with a variable or a constant. Divisors are constants of at least 2."""
    rng = scope.rng
    choices: tuple[str, ...]
    if division and rng.random() < 0.25:
        sign, choices, right = pick(rng, "//", "%"), ("//", "%", "*", "+", "-"), constant(rng, 2)
    else:
        sign, choices, right = pick(rng, *_PLUS_MINUS_TIMES), _PLUS_MINUS_TIMES, operand(scope, left.words)
    operator = spaced(Token(sign, FaultKind.OPERATOR, choices))
    return Expr((*left.tokens, operator, *spaced_all(right)), f"{left.words} {_WORDS[sign]} {right.words}")


def arithmetic(scope: Scope, division: bool = True) -> Expr:
    """A variable and one operator."""
    return combine(scope, scope.name(Kind.INT), division)


def long_arithmetic(scope: Scope) -> Expr:
    """A variable and two operators."""
    return combine(scope, arithmetic(scope, division=False), division=False)


def larger(scope: Scope) -> Expr:
    """`max` or `min` of two operands."""
    left = scope.name(Kind.INT)
    right = operand(scope, left.words)
    call = pick(scope.rng, "max", "min")
    tokens = (_call(call, "max", "min"), Token("("), *left.tokens, Token(","), *spaced_all(right), Token(")"))
    return Expr(tokens, f"{call} of {left.words} and {right.words}")


def magnitude(scope: Scope) -> Expr:
    """`abs` of a variable."""
    inner = scope.name(Kind.INT)
    return Expr((_call("abs", "int"), Token("("), *inner.tokens, Token(")")), f"abs of {inner.words}")


def comparison(scope: Scope, left: Expr) -> Expr:
    """`left` compared with an operand."""
    right = operand(scope, left.words)
    sign = pick(scope.rng, *_COMPARISONS)
    operator = spaced(Token(sign, FaultKind.COMPARISON, tuple(_COMPARISONS)))
    return Expr((*left.tokens, operator, *spaced_all(right)), f"{left.words} {_COMPARISONS[sign]} {right.words}")


def parity(scope: Scope) -> Expr:
    """A variable's remainder compared with a small number."""
    left = scope.name(Kind.INT)
    divisor = str(2 + int(scope.rng.random() * 3))
    rest = pick(scope.rng, "0", "1")
    sign = pick(scope.rng, "==", "!=")
    tokens = (
        *left.tokens,
        Token(" %"),
        spaced(Token(divisor, FaultKind.CONSTANT, _DIGITS[1:])),
        spaced(Token(sign, FaultKind.COMPARISON, ("==", "!=", ">"))),
        spaced(Token(rest, FaultKind.CONSTANT, ("0", "1", "2"))),
    )
    return Expr(tokens, f"{left.words} mod {divisor} {_COMPARISONS[sign]} {rest}")


def augmented(rng: random.Random, target: str, value: Expr) -> Expr:
    """`target += value` and its kin."""
    sign = pick(rng, "+=", "+=", "-=", "*=")
    words = {
        "+=": f"add {value.words} to {target}",
        "-=": f"take {value.words} from {target}",
        "*=": f"scale {target} by {value.words}",
    }
    operator = spaced(Token(sign, FaultKind.OPERATOR, _AUGMENTED))
    return Expr((Token(target), operator, *spaced_all(value)), words[sign])


def of_list(scope: Scope) -> Expr:
    """A number from a list of numbers."""
    rng = scope.rng
    inner = scope.name(Kind.LIST)
    if rng.random() < 0.3:
        place = pick(rng, "0", "1", "-1")
        others = {"0": ("1", "-1"), "1": ("0", "-1"), "-1": ("0", "-2")}[place]
        return Expr((*inner.tokens, Token("["), bound(place, *others), Token("]")), f"item {place} of {inner.words}")
    call = pick(rng, "max", "min", "sum", "len")
    tokens = (_call(call, "max", "min", "sum", "len"), Token("("), *inner.tokens, Token(")"))
    return Expr(tokens, f"{call} of {inner.words}")


def list_of_list(scope: Scope) -> Expr:
    """A list from a list: sorted, reversed or a slice."""
    inner = scope.name(Kind.LIST)
    if scope.rng.random() < 0.4:
        tokens = (_call("sorted", "list"), Token("("), *inner.tokens, Token(")"))
        return Expr(tokens, f"sorted {inner.words}")
    return _slice(scope.rng, inner)


def text_of_text(scope: Scope) -> Expr:
    """A string from a string."""
    inner = scope.name(Kind.STR)
    if scope.rng.random() < 0.5:
        call = pick(scope.rng, "upper", "lower", "title")
        tokens = (*inner.tokens, Token("."), _call(call, "upper", "lower", "title"), Token("()"))
        return Expr(tokens, f"{call} {inner.words}")
    return _slice(scope.rng, inner)


def joined_text(scope: Scope, left: Expr) -> Expr:
    """`left` and another string, or `left` repeated."""
    rng = scope.rng
    fresh = bool(scope.unused & set(scope.names[Kind.STR]))
    if not fresh and rng.random() < 0.35:
        count = str(2 + int(rng.random() * 2))
        tokens = (*left.tokens, Token(" *"), spaced(Token(count, FaultKind.CONSTANT, ("1", "2", "3", "4"))))
        return Expr(tokens, f"{left.words} times {count}")
    right = scope.name(Kind.STR) if fresh or rng.random() < 0.4 else text_constant(rng)
    if right.words == left.words:
        right = text_constant(rng)
    return Expr((*left.tokens, Token(" +"), *spaced_all(right)), f"{left.words} plus {right.words}")


def text_constant(rng: random.Random) -> Expr:
    """A string of one character."""
    text = pick(rng, *TEXTS)
    return Expr((Token(text, FaultKind.CONSTANT, TEXTS),), text)


def length(scope: Scope) -> Expr:
    """`len` of a string."""
    inner = scope.name(Kind.STR)
    return Expr((Token("len"), Token("("), *inner.tokens, Token(")")), f"len of {inner.words}")


def occurrences(scope: Scope) -> Expr:
    """How often a character occurs in a string."""
    inner, text = scope.name(Kind.STR), text_constant(scope.rng)
    tokens = (*inner.tokens, Token("."), Token("count"), Token("("), *text.tokens, Token(")"))
    return Expr(tokens, f"count of {text.words} in {inner.words}")


def _slice(rng: random.Random, inner: Expr) -> Expr:
    form = int(rng.random() * 3)
    if form == 0:
        step = (Token("[::"), Token("-1", FaultKind.CONSTANT, ("-1", "1", "2")), Token("]"))
        return Expr((*inner.tokens, *step), f"reverse of {inner.words}")
    at = pick(rng, "1", "2", "-1")
    others = {"1": ("0", "2"), "2": ("1", "3"), "-1": ("-2", "1")}[at]
    if form == 1:
        return Expr((*inner.tokens, Token("["), bound(at, *others), Token(":]")), f"{inner.words} from {at}")
    return Expr((*inner.tokens, Token("[:"), bound(at, *others), Token("]")), f"{inner.words} to {at}")


def _call(name: str, *choices: str) -> Token:
    return Token(name, FaultKind.CALL, choices if name in choices else (name, *choices))
