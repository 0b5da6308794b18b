"""The infinite stream of katas.

Invariants:
* `kata(index)` depends on the config, the split and the index alone, and costs the same for every index;
* all katas of a source are of its split;
* one fault is seeded, and it shows: in every example, and in at least one hidden test that is not an example.
"""

import random
from collections import defaultdict
from typing import Any

from etude.config.tasks import KatasConfig
from etude.records import Task, UserError
from etude.tasks.katas.arguments import draw_arguments
from etude.tasks.katas.evaluate import Call, failure, outcomes
from etude.tasks.katas.kata import Kata
from etude.tasks.katas.shapes import TIERS, draw_program
from etude.tasks.katas.split import Split, split_of
from etude.tasks.katas.tokens import Edit, FaultKind, Mutation, Program, edit_for, mutate, mutations

_VAGUE = 0.4  # share of tier 4 that is a program of tier 3 whose faulty clause lacks its detail
_FAULT_TRIES = 4  # in one program, before another one is drawn
_LONGEST_EXAMPLE = 44  # characters; two examples must be shorter to fit into a tight prompt
_LONGEST_OF_TWO = 30
_LONGEST_VALUE = len("gives ") + 16


class KataSource:
    """Katas of one split, by index."""

    def __init__(self, config: KatasConfig, split: Split) -> None:
        self.config = config
        self.split = Split(split)

    def kata(self, index: int) -> Kata:
        """The kata of an index. Raises UserError for a negative one."""
        if index < 0:
            raise UserError(f"kata {index}: an index must be 0 or more")
        rng = random.Random(f"{self.config.seed}/{self.split.value}/{index}")
        tier = rng.choices(TIERS, self.config.tiers)[0]
        while True:
            vague = tier == 4 and rng.random() < _VAGUE
            program = draw_program(rng, 3 if vague else tier)
            if split_of(program.body) is self.split:  # first of all, since it costs less than running the program
                kata = _break(rng, program, tier, vague, self.config)
                if kata is not None:
                    return kata

    def task(self, index: int) -> Task:
        """The task of an index. Raises UserError for a negative one."""
        return self.kata(index).task()


def _break(rng: random.Random, program: Program, tier: int, vague: bool, config: KatasConfig) -> Kata | None:
    """Seed one fault. None when the program is dull (errors, long values, nearly constant) or no fault shows."""
    arguments = draw_arguments(rng, program, 16 + config.tests_per_task)
    right = outcomes(program.source, arguments)
    if len(set(right)) < 3 or any(not good.startswith("gives") or len(good) > _LONGEST_VALUE for good in right):
        return None
    calls = [Call(args, good[len("gives ") :]) for args, good in zip(arguments, right, strict=True)]
    for mutation in _draw_mutations(rng, program):
        edits = edit_for(program, mutation)
        if edits is None:
            continue
        faulty = mutate(program, mutation)
        chosen = _choose_tests(
            calls, outcomes(faulty.source, arguments), config.examples + vague, config.tests_per_task
        )
        if chosen is not None:
            examples, tests, shown = chosen
            prompt = _prompt(faulty, mutation.line, vague, _hint(tier, edits[1]), shown)
            return Kata(tier, mutation.kind, faulty, program.source, edits[1], examples, tests, prompt)
    return None


def _draw_mutations(rng: random.Random, program: Program) -> list[Mutation]:
    """A few faults to try. Kinds are equally likely; a missing return, possible everywhere, half as much."""
    by_kind: dict[FaultKind, list[Mutation]] = defaultdict(list)
    for index, line in enumerate(program.lines):
        for mutation in mutations(line, index):
            by_kind[mutation.kind].append(mutation)
    kinds = list(by_kind)
    weights = [0.5 if kind is FaultKind.RETURN else 1.0 for kind in kinds]
    return [rng.choice(by_kind[kind]) for kind in rng.choices(kinds, weights, k=_FAULT_TRIES)]


def _choose_tests(
    calls: list[Call], got: list[str], shown: int, count: int
) -> tuple[tuple[Call, ...], tuple[Call, ...], list[str]] | None:
    """Examples, tests (examples first) and the text of the examples. None when too few calls fail.

    Half of the tests fail where so many do, so that neither the fault nor an overfitted repair slips through.
    """
    failing: list[Any] = []
    passing: list[Any] = []
    for call, outcome in zip(calls, got, strict=True):
        (passing if outcome == call.good else failing).append((call, failure(call, outcome)))
    limit = _LONGEST_EXAMPLE if shown == 1 else _LONGEST_OF_TWO
    examples = [pair for pair in failing if len(pair[1]) <= limit][:shown]
    if len(examples) < shown or len(failing) == shown:
        return None
    rest = [pair for pair in failing if pair not in examples]
    half = max(1, count // 2 - shown)
    tests = [*examples, *rest[:half], *passing, *rest[half:]][:count]
    return (
        tuple([call for call, _ in examples]),
        tuple([call for call, _ in tests]),
        [text for _, text in examples],
    )


def _prompt(faulty: Program, fault: int, vague: bool, hint: str, examples: list[str]) -> str:
    """What the agent reads: the clauses, the numbered file, a hint in easy tiers, the failing examples.

    fault: index of the faulty body line. vague: its clause lacks the detail.
    """
    clauses = [line.vague if vague and index == fault else line.clause for index, line in enumerate(faulty.lines)]
    numbered = [f"{number} {line}" for number, line in enumerate(faulty.source.splitlines(), 1)]
    return "\n".join([f"f: {'; '.join(clauses)}", *numbered, *([hint] if hint else []), *examples])


def _hint(tier: int, fix: Edit) -> str:
    """What a reviewer says: in tier 1 what to change and where, in tier 2 what a line needs, above that nothing.

    Old and new are spelt as in the fix, leading spaces included, so that their tokens can be copied.
    """
    return {1: f"line {fix.line}:{fix.old} to{fix.new}", 2: f"line {fix.line}:{fix.new}"}.get(tier, "")
