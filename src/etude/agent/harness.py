"""The agent's loop: one rollout from task to outcome.

Invariants:
* the ids given to the engine are the ids it returned before, plus what the harness appended: nothing is re-tokenised;
* a turn starts only when it, the request for a summary and the summary still fit into the context, so nothing that was
  done is ever dropped from it;
* infrastructure trouble ends in INFRA_FAULT without a reward; whatever the agent broke counts against the agent.
"""

import time
import zlib
from collections import Counter

import numpy as np

from etude.agent.grades import Grades
from etude.agent.segments import SegmentBuilder
from etude.agent.template import Malformed, Template
from etude.agent.tools import Answer, Toolbox
from etude.config.agent import AgentConfig
from etude.inference.engine import Engine, Finish, Generation, Request
from etude.machines import Fleet, LazyMachine, WorkspaceError
from etude.records import InfraError, Origin, Outcome, Rollout, Segment, Task


class Agent:
    """Runs rollouts. Holds no state between them; one instance serves any number at once."""

    def __init__(
        self, engine: Engine, fleet: Fleet, template: Template, config: AgentConfig, temperature: float
    ) -> None:
        self.engine = engine
        self.fleet = fleet
        self.template = template
        self.config = config
        self.temperature = temperature

    async def work(self, task: Task, rollout_id: str) -> list[Segment]:
        """The segments of one attempt without its grading, for demonstrations. Trouble of any kind is raised."""
        rollout = _Rollout(self, task, rollout_id, seed=0)
        await rollout.work()
        return rollout.finished_segments()

    async def run(
        self, task: Task, rollout_id: str, group_id: str, seed: int, attempt: int = 0, grades: Grades | None = None
    ) -> Rollout:
        """One attempt at `task`. Equal seeds give equal rollouts for equal weights. `grades`: shared by a group."""
        rollout = _Rollout(self, task, rollout_id, seed)
        try:
            outcome, detail = await rollout.play(grades or Grades(task, self.fleet))
        except InfraError as error:
            outcome, detail = Outcome.INFRA_FAULT, str(error)
        except WorkspaceError as error:  # the agent's program broke the file that was to be graded
            outcome, detail = Outcome.AGENT_FAULT, str(error)
        finally:
            await self.engine.release(rollout_id)
        return Rollout(
            rollout_id=rollout_id,
            group_id=group_id,
            task_id=task.task_id,
            tier=task.tier,
            attempt=attempt,
            segments=tuple(rollout.finished_segments()),
            outcome=outcome,
            reward=outcome.reward,
            seconds=rollout.seconds,
            counts=dict(rollout.counts),
            detail=detail,
        )


class _Rollout:
    """The state of one attempt."""

    def __init__(self, agent: Agent, task: Task, rollout_id: str, seed: int) -> None:
        self.agent, self.task, self.rollout_id, self.seed = agent, task, rollout_id, seed
        self.counts: Counter[str] = Counter(turns=0, tool_errors=0, summaries=0)
        self.seconds = {"model": 0.0, "tool": 0.0, "grade": 0.0}
        self._segments: list[Segment] = []
        self._calls = 0
        self._window = SegmentBuilder()
        self._window.add(agent.template.task(task.prompt) + agent.template.turn(), Origin.PROMPT)

    def finished_segments(self) -> list[Segment]:
        """All segments with at least one sampled token."""
        return [*self._segments, *([self._window.build()] if self._window.routes_held else [])]

    async def play(self, grades: Grades) -> tuple[Outcome, str]:
        """Work in a machine of its own, then be graded in a fresh one."""
        stop, files = await self.work()
        if stop is not None:
            return stop
        started = time.perf_counter()
        verdict = await grades.of(files)
        self.seconds["grade"] += time.perf_counter() - started
        return verdict.outcome, verdict.detail

    async def work(self) -> tuple[tuple[Outcome, str] | None, dict[str, str]]:
        """Open a machine and use it: how the budget ran out (None: the agent finished), and what it left behind."""
        async with LazyMachine(self.agent.fleet, self.task.files) as machine:
            tools = Toolbox(self.task, machine, self.agent.config.run_timeout_s)
            return await self._turns(tools), {tools.file: await machine.read(tools.file)}

    async def _turns(self, tools: Toolbox) -> tuple[Outcome, str] | None:
        """Turn after turn until the agent finishes (None: to be graded) or runs out of its budget."""
        config, template = self.agent.config, self.agent.template
        if not self._has_room():
            return Outcome.OVERLONG, f"a task of {len(self._window)} tokens leaves no room for a turn"
        malformed = 0  # calls in a row
        while self.counts["turns"] < config.max_turns:
            if not self._has_room():
                if not await self._summarize():
                    return Outcome.OVERLONG, f"more than {config.max_summaries} summaries"
                if not self._has_room():
                    return Outcome.OVERLONG, f"task and summary, {len(self._window)} tokens, leave no room for a turn"
            self.counts["turns"] += 1
            generation = await self._sample(config.max_action)
            call = template.parse(generation.ids_N)
            if not isinstance(call, Malformed) and call.tool == "finish":
                return None
            malformed = malformed + 1 if isinstance(call, Malformed) else 0
            if malformed == config.max_malformed:
                return Outcome.AGENT_FAULT, f"{malformed} malformed calls in a row"
            started = time.perf_counter()
            answer = Answer(call.reason, error=True) if isinstance(call, Malformed) else await tools.use(call)
            self.seconds["tool"] += time.perf_counter() - started
            self.counts["tool_errors"] += answer.error
            self._window.add(template.observation(answer.text, config.max_observation), Origin.OBSERVATION)
        return Outcome.OVERLONG, f"more than {config.max_turns} turns"

    def _has_room(self) -> bool:
        """Whether one more turn, the request for a summary and the summary fit into the window."""
        return self.agent.config.context - len(self._window) >= self.agent.config.reserve

    async def _summarize(self) -> bool:
        """Ask for a summary and go on from it in a new window. False when the budget of summaries is used up.

        The summary is sampled, and so trained, in the old window; its copy in the new one is COPIED and is not.
        """
        agent, template = self.agent, self.agent.template
        if self.counts["summaries"] >= agent.config.max_summaries:
            return False
        self.counts["summaries"] += 1
        self._window.add(template.query(), Origin.QUERY)
        generation = await self._sample(agent.config.max_summary)
        self.counts["summaries_cut"] += generation.finish is Finish.LENGTH
        self._segments.append(self._window.build())
        self._window = SegmentBuilder()
        self._window.add(template.task(self.task.prompt), Origin.PROMPT)
        self._window.add(template.carried(generation.ids_N), Origin.COPIED)
        self._window.add(template.turn(), Origin.PROMPT)
        return True

    async def _sample(self, max_tokens: int) -> Generation:
        self._calls += 1
        started = time.perf_counter()
        generation = await self.agent.engine.generate(
            Request(
                session=self.rollout_id,
                ids_T=self._window.ids_T,
                max_tokens=max_tokens,
                stop_id=self.agent.template.end,
                temperature=self.agent.temperature,
                seed=call_seed(self.seed, self._calls),
                routes_from=self._window.routes_held,
            )
        )
        self.seconds["model"] += time.perf_counter() - started
        self._window.add_sampled(generation)
        return generation


def call_seed(seed: int, call: int) -> int:
    """A seed for the `call`-th request of a rollout: distinct for all (seed, call) with seeds below 2**32, equal on
    every machine."""
    return zlib.crc32(np.array([seed, call], np.int64).tobytes()) | (seed & 0xFFFFFFFF) << 32
