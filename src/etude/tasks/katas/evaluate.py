"""Running katas inside this process, for text that we generated ourselves.

Invariant: `outcomes` gives for each call what `examples.py` and `hidden_tests.py` see in a process of their own.
Values are compared by their `repr`, which tells 1 from True and from 1.0 and covers everything a kata returns.
Never for what a policy wrote: that runs in machines.
"""

from typing import Any, NamedTuple


class Call(NamedTuple):
    """One call of `f` and the `repr` of what it should return."""

    args: tuple[Any, ...]
    want: str

    @property
    def text(self) -> str:
        """As written in Python, for example `f(3, 1)`."""
        return call_text(self.args)

    @property
    def good(self) -> str:
        """The outcome of a correct program, for example `gives 8`."""
        return f"gives {self.want}"


def call_text(args: tuple[Any, ...]) -> str:
    """The call of `f` as written in Python."""
    return f"f({', '.join([repr(arg) for arg in args])})"


def outcomes(source: str, arguments: list[tuple[Any, ...]]) -> list[str]:
    """For each tuple of arguments `gives VALUE` or `raises ERROR`. Lists among the arguments are not changed."""
    namespace: dict[str, Any] = {}
    try:
        exec(compile(source, "kata.py", "exec"), namespace)
    except Exception as error:
        return [f"raises {type(error).__name__}"] * len(arguments)
    function = namespace.get("f")
    if function is None:
        return ["raises AttributeError"] * len(arguments)
    results = []
    for args in arguments:
        try:
            results.append(f"gives {function(*[list(arg) if type(arg) is list else arg for arg in args])!r}")
        except Exception as error:
            results.append(f"raises {type(error).__name__}")
    return results


def examples_output(source: str, examples: tuple[Call, ...]) -> str:
    """Exactly what `python examples.py` prints beside this `kata.py`, the final newline included."""
    for call, got in zip(examples, outcomes(source, [call.args for call in examples]), strict=True):
        if got != call.good:
            return f"{failure(call, got)}\n"
    return "ok\n"


def failure(call: Call, got: str) -> str:
    """The line that reports a failing call, for example `f(3, 1) gives 4, want 8`."""
    return f"{call.text} {got}, want {call.want}"
