"""An engine that answers from a list and machines that fail on request: every token is known beforehand."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from etude.agent import Template, ToolCall
from etude.config.tasks import KatasConfig
from etude.corpus import Tokenizer
from etude.inference.engine import Finish, Generation, Request
from etude.machines import ExecResult, ExecStatus
from etude.records import PolicyVersion, VersionSpan
from etude.tasks.katas import Kata, KataSource, Split

Answer = list[int] | Exception


@functools.cache
def katas(count: int = 60) -> list[Kata]:
    """The first training katas."""
    source = KataSource(KatasConfig(), Split.TRAIN)
    return [source.kata(index) for index in range(count)]


@functools.cache
def tokenizer() -> Tokenizer:
    """Learnt from a few prompts: the smallest vocabulary there is, so that most words are several tokens."""
    return Tokenizer.train([kata.prompt for kata in katas()], 512)


@functools.cache
def template() -> Template:
    return Template(tokenizer())


class Player:
    """Answers each request with the next item; an answer longer than allowed is cut, an error is raised.

    The route row of the token at position p is [[p]], its logprob -(p + 1) / 1000 and its version the number of the
    request, so that whatever is shifted by one shows.
    """

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.written: list[list[int]] = []
        self.released: list[str] = []

    async def generate(self, request: Request) -> Generation:
        answer = self.answers[len(self.requests)]
        self.requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        ids = answer[: request.max_tokens]
        self.written.append(ids)
        start, end = len(request.ids_T), len(request.ids_T) + len(ids)
        return Generation(
            session=request.session,
            ids_N=np.array(ids, np.int32),
            logprobs_N=-np.arange(start + 1, end + 1, dtype=np.float32) / 1000,
            routes_RLK=np.arange(request.routes_from, end - 1, dtype=np.int16).reshape(-1, 1, 1),
            spans=(VersionSpan(0, len(ids), version(len(self.requests))),),
            finish=Finish.STOP if ids[-1] == request.stop_id else Finish.LENGTH,
        )

    async def release(self, session: str) -> None:
        self.released.append(session)


def version(request: int) -> PolicyVersion:
    """What the Player's answer to its `request`-th request was sampled by."""
    return PolicyVersion(request, f"{request:032x}")


class Machine:
    """Files in a dict; programs end with `result`. `trouble(what, path)` may raise before anything is done."""

    def __init__(self, files: Mapping[str, str], result: ExecResult, trouble: Callable[[str], None]) -> None:
        self.files, self.result, self.trouble = dict(files), result, trouble
        self.closed = False
        self.ran: list[tuple[str, ...]] = []

    async def read(self, path: str) -> str:
        self.trouble("read")
        return self.files[path]

    async def write(self, path: str, text: str) -> None:
        self.trouble("write")
        self.files[path] = text

    async def exec(self, argv: Sequence[str], timeout_s: float | None = None) -> ExecResult:
        self.trouble("exec")
        self.ran.append(tuple(argv))
        return self.result

    async def close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> "Machine":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Fleet:
    """`errors`: (what, how many times it goes well first) -> the exception that it raises then."""

    def __init__(
        self,
        output: str = "ok\n",
        errors: Mapping[tuple[str, int], Exception] | None = None,
        status: ExecStatus = ExecStatus.OK,
    ) -> None:
        self.result, self.errors = ExecResult(status, 0, output), dict(errors or {})
        self.machines: list[Machine] = []
        self._done: dict[str, int] = {}

    async def open(self, files: Mapping[str, str]) -> Machine:
        self._trouble("open")
        self.machines.append(Machine(files, self.result, self._trouble))
        return self.machines[-1]

    async def close(self) -> None:
        assert all(machine.closed for machine in self.machines)

    def _trouble(self, what: str) -> None:
        count = self._done[what] = self._done.get(what, -1) + 1
        if (what, count) in self.errors:
            raise self.errors[what, count]


def call(tool: str, *args: str) -> list[int]:
    """The tokens of a call."""
    return template().call(ToolCall(tool, args))


def fix_of(kata: Kata) -> list[int]:
    """The tokens of the edit that solves a kata."""
    return call("edit", str(kata.fix.line), kata.fix.old, kata.fix.new)


def text_of(ids: Any) -> str:
    return tokenizer().decode(ids)
