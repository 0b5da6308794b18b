"""Errors that say whose fault it was. Anything else that escapes is a bug and keeps its traceback."""


class UserError(ValueError):
    """Bad input: the message names the thing, what was expected and what to do. Shown without a traceback."""


class InfraError(RuntimeError):
    """The infrastructure failed (machine, engine, store): retried, and never turned into a reward."""
