"""Tasks: edits and grading for every family; the built-in family is `etude.tasks.katas`."""

from etude.tasks.edits import EditError, apply_edit
from etude.tasks.grading import PASSPHRASE, Verdict, grade

__all__ = ["PASSPHRASE", "EditError", "Verdict", "apply_edit", "grade"]
