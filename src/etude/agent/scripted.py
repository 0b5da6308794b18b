"""A policy that is a script: the engine side of demonstrations.

Invariant: a demonstration has exactly the tokens that the harness would have produced had the policy sampled the
script's calls, because it *is* the harness that produces it.
"""

from collections.abc import Sequence

import numpy as np

from etude.agent.template import Template, ToolCall
from etude.inference.engine import Finish, Generation, Request
from etude.records import PolicyVersion, VersionSpan

# No weights sampled a demonstration: this version can never equal a real one, whose step is at least 0.
NO_POLICY = PolicyVersion(-1, "0" * 32)


class ScriptedEngine:
    """Answers each request with the script's next call, or with a summary of the edits made so far."""

    def __init__(self, template: Template, calls: Sequence[ToolCall]) -> None:
        self.template = template
        self._calls = iter(calls)
        self._edits: list[str] = []
        self._query = template.query()

    async def generate(self, request: Request) -> Generation:
        """The next call's tokens, as if sampled with certainty (logprob 0)."""
        if request.ids_T[-len(self._query) :].tolist() == self._query:
            ids = self.template.summary("; ".join(self._edits))
        else:
            call = next(self._calls, ToolCall("finish"))
            if call.tool == "edit":
                self._edits.append(summary_line(call))
            ids = self.template.call(call)
        rows = len(request.ids_T) + len(ids) - 1 - request.routes_from
        return Generation(
            session=request.session,
            ids_N=np.array(ids, np.int32),
            logprobs_N=np.zeros(len(ids), np.float32),
            routes_RLK=np.zeros((rows, 0, 0), np.int16),
            spans=(VersionSpan(0, len(ids), NO_POLICY),),
            finish=Finish.STOP,
        )

    async def release(self, session: str) -> None:
        """Nothing is kept."""


def summary_line(call: ToolCall) -> str:
    """How a demonstrated summary names an edit: line, old and new."""
    line, old, new = call.args
    return f"{line}{old} >{new}"
