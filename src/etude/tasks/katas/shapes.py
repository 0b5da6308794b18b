"""Shapes of correct programs, by tier.

Invariant: every program ends, and so does each of its mutations. There is no `while`; the list that grows in a loop is
declared only after it, so that no mutation makes the loop run over it; ranges are bounded by small parameters.
"""

import random
from collections.abc import Callable

from etude.tasks.katas.body import Body
from etude.tasks.katas.expressions import (
    Expr,
    Kind,
    Scope,
    arithmetic,
    combine,
    comparison,
    joined_text,
    larger,
    length,
    list_of_list,
    long_arithmetic,
    magnitude,
    occurrences,
    of_list,
    operand,
    parity,
    pick,
    text_constant,
    text_of_text,
)
from etude.tasks.katas.tokens import Program, Token

TIERS = (1, 2, 3, 4)


def _ints(rng: random.Random, low: int, high: int) -> tuple[Kind, ...]:
    return (Kind.INT,) * (low + int(rng.random() * (high - low + 1)))


# Tier 1: one or two lines of arithmetic.


def _one_line(rng: random.Random) -> Body:
    body = Body(rng, *_ints(rng, 1, 3))
    body.give(long_arithmetic(body.scope) if rng.random() < 0.85 else arithmetic(body.scope))
    return body


def _two_lines(rng: random.Random) -> Body:
    body = Body(rng, *_ints(rng, 1, 3))
    body.assign("x", arithmetic(body.scope), Kind.INT)
    body.give(arithmetic(body.scope))
    return body


# Tier 2: conditions, comparisons, constants, calls.


def _guard(rng: random.Random) -> Body:
    body = Body(rng, *_ints(rng, 1, 2))
    body.test(_condition(body.scope))
    body.give(arithmetic(body.scope), depth=2)
    body.give(_value(body.scope))
    return body


def _guarded_change(rng: random.Random) -> Body:
    body = Body(rng, *_ints(rng, 1, 2))
    body.assign("x", _value(body.scope), Kind.INT)
    body.test(_condition(body.scope))
    body.update("x", operand(body.scope, "x"), depth=2)
    body.give(arithmetic(body.scope) if rng.random() < 0.5 else body.scope.name(Kind.INT))
    return body


def _call(rng: random.Random) -> Body:
    body = Body(rng, *_ints(rng, 1, 3))
    first, second = (_value, arithmetic) if rng.random() < 0.5 else (arithmetic, _value)
    body.assign("x", first(body.scope), Kind.INT)
    body.give(second(body.scope))
    return body


def _truth(rng: random.Random) -> Body:
    body = Body(rng, *_ints(rng, 1, 3))
    body.assign("x", _value(body.scope), Kind.INT)
    body.give(_condition(body.scope))
    return body


# Tier 3: loops, strings, lists.


def _range_sum(rng: random.Random) -> Body:
    body = Body(rng, Kind.COUNT, *_ints(rng, 0, 1))
    body.start("t", pick(rng, "0", "1", "2"))
    body.loop_range()
    with body.scope.inside(Kind.INT, "i"):
        body.update("t", _small(body.scope), depth=2)
    _finish_total(body)
    return body


def _list_sum(rng: random.Random) -> Body:
    body = Body(rng, Kind.LIST, *_ints(rng, 0, 1))
    body.start("t", pick(rng, "0", "1", "2"))
    body.loop_over("v", body.scope.name(Kind.LIST))
    with body.scope.inside(Kind.INT, "v"):
        body.update("t", _small(body.scope), depth=2)
    _finish_total(body)
    return body


def _list_map(rng: random.Random) -> Body:
    body = Body(rng, Kind.LIST, *_ints(rng, 0, 1))
    body.start("out", "[]")
    over = body.scope.name(Kind.LIST) if rng.random() < 0.6 else list_of_list(body.scope)
    body.loop_over("v", over)
    with body.scope.inside(Kind.INT, "v"):
        body.append(combine(body.scope, body.scope.name(Kind.INT)), depth=2)
    _finish_out(body)
    return body


def _list_steps(rng: random.Random) -> Body:
    body = Body(rng, Kind.LIST, *_ints(rng, 0, 1))
    if rng.random() < 0.5:
        body.assign("x", of_list(body.scope), Kind.INT)
    else:
        body.assign("zs", list_of_list(body.scope), Kind.LIST)
        body.assign("x", of_list(body.scope), Kind.INT)
    body.give(arithmetic(body.scope))
    return body


def _text_steps(rng: random.Random) -> Body:
    body = Body(rng, *(Kind.STR,) * (1 + (rng.random() < 0.5)))
    body.assign("r", text_of_text(body.scope), Kind.STR)
    if rng.random() < 0.5:
        body.assign("r", joined_text(body.scope, body.scope.name(Kind.STR)), Kind.STR)
        body.scope.unused.add("r")
    body.give(joined_text(body.scope, body.scope.name(Kind.STR)))
    return body


def _text_count(rng: random.Random) -> Body:
    body = Body(rng, Kind.STR, *_ints(rng, 0, 1))
    body.assign("x", pick(rng, length, occurrences)(body.scope), Kind.INT)
    body.give(long_arithmetic(body.scope) if rng.random() < 0.5 else arithmetic(body.scope))
    return body


def _text_map(rng: random.Random) -> Body:
    body = Body(rng, Kind.STR)
    body.start("out", "[]")
    body.loop_over("v", body.scope.name(Kind.STR) if rng.random() < 0.4 else text_of_text(body.scope))
    with body.scope.inside(Kind.STR, "v"):
        value = pick(rng, text_of_text, lambda scope: joined_text(scope, scope.name(Kind.STR)))(body.scope)
        body.append(value, depth=2)
    glue = text_constant(rng)
    tokens = (*glue.tokens, Token("."), Token("join"), Token("("), Token("out"), Token(")"))
    body.give(Expr(tokens, f"join out with {glue.words}"))
    return body


# Tier 4: the longest. Shapes of tier 3 with a hidden clause belong to it too.


def _filtered_sum(rng: random.Random) -> Body:
    body = Body(rng, *(pick(rng, Kind.LIST, Kind.COUNT),), *_ints(rng, 0, 1))
    body.start("t", pick(rng, "0", "1"))
    if body.scope.names[Kind.LIST]:
        body.loop_over("v", body.scope.name(Kind.LIST))
        variable = "v"
    else:
        body.loop_range()
        variable = "i"
    with body.scope.inside(Kind.INT, variable):
        body.test(_condition(body.scope), depth=2)
        body.update("t", body.scope.name(Kind.INT) if rng.random() < 0.4 else _small(body.scope), depth=3)
    _finish_total(body)
    return body


def _filtered_map(rng: random.Random) -> Body:
    body = Body(rng, Kind.LIST, *_ints(rng, 0, 1))
    body.start("out", "[]")
    body.loop_over("v", body.scope.name(Kind.LIST))
    with body.scope.inside(Kind.INT, "v"):
        body.test(_condition(body.scope), depth=2)
        value = body.scope.name(Kind.INT) if rng.random() < 0.4 else arithmetic(body.scope)
        body.append(value, depth=3)
    _finish_out(body)
    return body


def _prepared_sum(rng: random.Random) -> Body:
    body = Body(rng, Kind.LIST, *_ints(rng, 0, 1))
    body.assign("x", of_list(body.scope), Kind.INT)
    body.start("t", pick(rng, "0", "1"))
    body.loop_over("v", list_of_list(body.scope))
    with body.scope.inside(Kind.INT, "v"):
        body.update("t", _small(body.scope), depth=2)
    _finish_total(body)
    return body


def _condition(scope: Scope) -> Expr:
    return parity(scope) if scope.rng.random() < 0.3 else comparison(scope, scope.name(Kind.INT))


def _value(scope: Scope) -> Expr:
    draw = scope.rng.random()
    return larger(scope) if draw < 0.45 else magnitude(scope) if draw < 0.6 else arithmetic(scope)


def _small(scope: Scope) -> Expr:
    """What a loop adds: a variable, or a variable and one operator."""
    return scope.name(Kind.INT) if scope.rng.random() < 0.25 else arithmetic(scope)


def _finish_total(body: Body) -> None:
    body.scope.declare(Kind.INT, "t")
    if body.rng.random() < 0.4 and len(body.scope.unused) == 1:
        body.give(body.scope.name(Kind.INT))
    else:
        total = Expr((Token("t"),), "t")
        body.scope.unused.discard("t")
        body.give(combine(body.scope, total))


def _finish_out(body: Body) -> None:
    body.scope.declare(Kind.LIST, "out")
    draw = body.rng.random()
    form = body.scope.name if draw < 0.4 else None
    if form:
        body.give(form(Kind.LIST))
    else:
        body.give(list_of_list(body.scope) if draw < 0.7 else of_list(body.scope))


Shape = Callable[[random.Random], Body]

_SHAPES: dict[int, tuple[Shape, ...]] = {
    1: (_one_line, _two_lines, _two_lines),
    2: (_guard, _guarded_change, _call, _truth),
    3: (_range_sum, _list_sum, _list_map, _list_steps, _text_steps, _text_count, _text_map),
    4: (_filtered_sum, _filtered_map, _prepared_sum),
}


def draw_program(rng: random.Random, tier: int) -> Program:
    """A correct program of a tier."""
    while True:
        program = pick(rng, *_SHAPES[tier])(rng).program()
        if program is not None:
            return program
