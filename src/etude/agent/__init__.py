"""The harness: loop, tools, conversation template, self-summarization."""

from etude.agent.grades import Grades
from etude.agent.harness import Agent, call_seed
from etude.agent.segments import SegmentBuilder
from etude.agent.template import Malformed, Template, ToolCall
from etude.agent.tools import Answer, Toolbox

__all__ = ["Agent", "Answer", "Grades", "Malformed", "SegmentBuilder", "Template", "ToolCall", "Toolbox", "call_seed"]
