"""Programs as lines of tokens, and what can go wrong with a token.

Invariants:
* a token carries the space before it, so that a BPE tokenizer with leading-space tokens gives it the same ids in an
  edit as in the file: in `    x = a - b` the tokens are ` x`, ` =`, ` a`, ` -`, ` b` (an indent of four spaces is three
  spaces and the one that its first token carries);
* a mutation and its reverse are both edits that apply cleanly: old occurs exactly once in the line before, new exactly
  once in the line after.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from etude.tasks.edits import occurs_once


class FaultKind(StrEnum):
    """What is wrong with a kata."""

    OPERATOR = "wrong_operator"
    CONSTANT = "wrong_constant"
    VARIABLE = "wrong_variable"
    SWAPPED = "swapped_arguments"
    OFF_BY_ONE = "off_by_one"
    RETURN = "missing_return"
    COMPARISON = "wrong_comparison"
    CALL = "wrong_call"


class Token(NamedTuple):
    """`choices`: every text this place may hold, the present one included; any other is a fault of `kind`."""

    text: str
    kind: FaultKind | None = None
    choices: tuple[str, ...] = ()


class Line(NamedTuple):
    """One line of a body. `clause` says in words what it does; `vague` is the clause without its detail."""

    depth: int  # 1 is the body of the function
    tokens: tuple[Token, ...]
    clause: str
    vague: str

    @property
    def text(self) -> str:
        return " " * (4 * self.depth - 1) + "".join([token.text for token in self.tokens])


class Mutation(NamedTuple):
    """Replaces tokens `[start, end)` of body line `line` (0 is the first) by `tokens`."""

    kind: FaultKind
    line: int
    start: int
    end: int
    tokens: tuple[Token, ...]


class Edit(NamedTuple):
    """Arguments of the agent's edit. `line` counts from 1 in the file, whose first line is the `def`."""

    line: int
    old: str
    new: str


class Program(NamedTuple):
    """A function `f` with its parameters and body lines."""

    parameters: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def body(self) -> str:
        return "\n".join([line.text for line in self.lines])

    @property
    def source(self) -> str:
        """The file, with a final newline."""
        return f"def f({', '.join(self.parameters)}):\n{self.body}\n"


def mutations(line: Line, index: int) -> Iterator[Mutation]:
    """Every fault that one step can put into body line `index`."""
    tokens = line.tokens
    for at, token in enumerate(tokens):
        if token.kind is FaultKind.RETURN:
            yield Mutation(token.kind, index, at, at + 2, (tokens[at + 1],))
        elif token.kind is not None:
            for text in token.choices:
                if text != token.text:
                    yield _replacement(tokens, at, text, index)
        if token.text in (" -", " //", " %"):
            swapped = _swapped(tokens[at - 1], token, tokens[at + 1])
            if swapped:
                yield Mutation(FaultKind.SWAPPED, index, at - 1, at + 2, swapped)


def _replacement(tokens: tuple[Token, ...], at: int, text: str, index: int) -> Mutation:
    """Another text for one token. A token that now follows a comma gains its space: `.append(v`, `.insert(0, v`."""
    token = tokens[at]
    assert token.kind is not None
    changed = token._replace(text=text)
    if (text[-1] == ",") == (token.text[-1] == ","):
        return Mutation(token.kind, index, at, at + 1, (changed,))
    following = _with_lead(tokens[at + 1], " " if text[-1] == "," else "")
    return Mutation(token.kind, index, at, at + 2, (changed, following))


def mutate(program: Program, mutation: Mutation) -> Program:
    """The program after the mutation."""
    lines = list(program.lines)
    line = lines[mutation.line]
    tokens = (*line.tokens[: mutation.start], *mutation.tokens, *line.tokens[mutation.end :])
    lines[mutation.line] = line._replace(tokens=tokens)
    return program._replace(lines=tuple(lines))


def edit_for(program: Program, mutation: Mutation) -> tuple[Edit, Edit] | None:
    """The mutation as an edit, and the edit that undoes it; None when no short one applies cleanly both ways.

    The mutated tokens alone are tried first, then with one neighbour on the left, on the right, on both sides.
    """
    line = program.lines[mutation.line]
    before = line.text
    after = mutate(program, mutation).lines[mutation.line].text
    changed = "".join([token.text for token in mutation.tokens])
    for left, right in ((0, 0), (1, 0), (0, 1), (1, 1)):
        start, end = mutation.start - left, mutation.end + right
        if start < 0 or end > len(line.tokens):
            continue
        old = "".join([token.text for token in line.tokens[start:end]])
        head = line.tokens[start].text if left else ""
        tail = line.tokens[end - 1].text if right else ""
        new = head + changed + tail
        if occurs_once(before, old) and occurs_once(after, new):
            number = mutation.line + 2
            return Edit(number, old, new), Edit(number, new, old)
    return None


_ATOMS = (FaultKind.VARIABLE, FaultKind.CONSTANT)


def _swapped(left: Token, operator: Token, right: Token) -> tuple[Token, Token, Token] | None:
    if left.kind not in _ATOMS or right.kind not in _ATOMS or left.text.strip() == right.text.strip():
        return None
    return _respaced(right, left.text), operator, _respaced(left, right.text)


def _respaced(token: Token, like: str) -> Token:
    """`token` with a leading space exactly where `like` has one."""
    return spaced(token) if like[0] == " " else _with_lead(token, "")


def spaced(token: Token) -> Token:
    """`token` with one leading space."""
    return _with_lead(token, " ")


def _with_lead(token: Token, lead: str) -> Token:
    choices = tuple([lead + choice.lstrip(" ") for choice in token.choices])
    return Token(lead + token.text.lstrip(" "), token.kind, choices)
