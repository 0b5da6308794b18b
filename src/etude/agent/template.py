"""The conversation as tokens.

Invariant: text never becomes a marker. Markers are written by the harness or sampled by the policy, and what a tool or
a task says is encoded as plain text, so that no file content can end a turn or call a tool.

One context window:
    <|user|> task <|end|> [<|summary|> carried summary <|end|>]
    <|assistant|> <|edit|> 2 <|arg|> -  <|arg|> + <|end|>   <- sampled, up to and with <|end|>
    <|observation|> ... <|end|>
    <|assistant|> ...
    <|summarize|> <|summary|> ... <|end|>                   <- the request is ours, the summary is sampled
"""

from dataclasses import dataclass

import numpy as np

from etude.corpus import Tokenizer

TOOLS = ("view", "edit", "run", "finish")
ARITY = {"view": 0, "edit": 3, "run": 0, "finish": 0}


@dataclass(frozen=True)
class ToolCall:
    """One call: the tool's name and its arguments as text."""

    tool: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Malformed:
    """Sampled tokens that are no call. `reason` is shown to the agent."""

    reason: str


class Template:
    """Writes and reads the conversation with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        special = tokenizer.special
        self.end = special("<|end|>")
        self._user, self._assistant = special("<|user|>"), special("<|assistant|>")
        self._observation, self._arg = special("<|observation|>"), special("<|arg|>")
        self._summarize, self._summary = special("<|summarize|>"), special("<|summary|>")
        self._tools = {special(f"<|{tool}|>"): tool for tool in TOOLS}
        self._tool_ids = {tool: marker for marker, tool in self._tools.items()}

    def task(self, prompt: str) -> list[int]:
        """The task as the agent first reads it, without the turn that follows."""
        return [self._user, *self.tokenizer.encode_text(prompt), self.end]

    def turn(self) -> list[int]:
        """The marker after which the agent speaks."""
        return [self._assistant]

    def observation(self, text: str, limit: int) -> list[int]:
        """A tool's answer, cut in the middle to at most `limit` tokens of text, then the next turn's marker."""
        ids = self.tokenizer.encode_text(text)
        if len(ids) > limit:
            ids = ids[: limit - limit // 2] + ids[len(ids) - limit // 2 :]
        return [self._observation, *ids, self.end, self._assistant]

    def query(self) -> list[int]:
        """The request for a summary, up to where the agent writes it."""
        return [self._summarize, self._summary]

    def carried(self, summary: np.ndarray) -> list[int]:
        """A sampled summary (its end marker may be missing when it was cut) as the next window's context."""
        text = [int(token) for token in summary if token != self.end]
        return [self._summary, *text, self.end]

    def call(self, call: ToolCall) -> list[int]:
        """The tokens of a call, as a policy would sample them."""
        ids = [self._tool_ids[call.tool]]
        for position, argument in enumerate(call.args):
            ids += [self._arg] if position else []
            ids += self.tokenizer.encode_text(argument)
        return [*ids, self.end]

    def summary(self, text: str) -> list[int]:
        """The tokens of a summary, as a policy would sample them."""
        return [*self.tokenizer.encode_text(text), self.end]

    def parse(self, sampled: np.ndarray) -> ToolCall | Malformed:
        """Read sampled tokens as a call."""
        ids = [int(token) for token in sampled]
        if not ids or ids[0] not in self._tools:
            return Malformed("no tool")
        if ids[-1] != self.end:
            return Malformed("call too long")
        tool, arguments = self._tools[ids[0]], self._split(ids[1:-1])
        if len(arguments) != ARITY[tool]:
            return Malformed(f"{tool} takes {ARITY[tool]} arguments")
        return ToolCall(tool, tuple(self.tokenizer.decode(part) for part in arguments))

    def _split(self, ids: list[int]) -> list[list[int]]:
        if not ids:
            return []
        parts: list[list[int]] = [[]]
        for token in ids:
            if token == self._arg:
                parts.append([])
            else:
                parts[-1].append(token)
        return parts
