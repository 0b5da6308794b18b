"""One kata.

Invariant: `fix` turns `source` into `solution`; `source` fails every example, `solution` passes everything.
"""

from dataclasses import dataclass
from functools import cached_property

from etude.records import Task
from etude.tasks.katas.evaluate import Call, examples_output, outcomes
from etude.tasks.katas.scripts import example_files, hidden_files
from etude.tasks.katas.tokens import Edit, FaultKind, Program


@dataclass(frozen=True)
class Kata:
    """One repair task. Two methods run text inside this process: give them only text that was generated here.

    program:  the faulty program as tokens.
    solution: text of the correct `kata.py`.
    fix:      the edit that repairs it; `undo` of a fix is `Edit(line, new, old)` and applies as cleanly.
    examples: the shown calls, all of which fail; also the first of the `tests`.
    """

    tier: int
    fault: FaultKind
    program: Program
    solution: str
    fix: Edit
    examples: tuple[Call, ...]
    tests: tuple[Call, ...]
    prompt: str

    @cached_property
    def source(self) -> str:
        """Text of the faulty `kata.py`."""
        return self.program.source

    def examples_output(self, source: str) -> str:
        """Exactly what `python examples.py` prints when `source` is kata.py, final newline included."""
        return examples_output(source, self.examples)

    def passes(self, source: str) -> bool:
        """Whether the hidden tests pass when `source` is kata.py."""
        return outcomes(source, [call.args for call in self.tests]) == [call.good for call in self.tests]

    def task(self) -> Task:
        """The kata as the agent and the grader know it. Meta: fault, line (of the fix), file (to repair), run."""
        return Task.make(
            family="katas",
            tier=self.tier,
            prompt=self.prompt,
            files={"kata.py": self.source, **example_files(self.examples)},
            tests=hidden_files(self.tests),
            command=("python", "hidden_tests.py"),
            meta={"fault": self.fault.value, "line": str(self.fix.line), "file": "kata.py", "run": "examples.py"},
        )
