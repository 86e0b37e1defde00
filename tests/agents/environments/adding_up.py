"""A verifiers environment of the tests: sums, a tool that adds, and a rubric. Several turns, also without a call."""

import json

import verifiers as vf
from datasets import Dataset


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the one
        b: the other
    """
    return a + b


async def right(completion, answer) -> float:
    """The last answer is the sum."""
    return float(str(completion[-1].content or "").strip() == answer) if completion else 0.0


async def short(completion) -> float:
    said = [str(message.content or "") for message in completion or [] if message.role == "assistant"]
    return 1.0 - min(1.0, sum(map(len, said)) / 60)


class AddingUp(vf.ToolEnv):
    """Who calls no tool is told the length of what was said, as a tool would tell it."""

    @vf.stop
    async def no_tools_called(self, state) -> bool:
        called = bool(state["trajectory"]) and bool(state["trajectory"][-1]["completion"][-1].tool_calls)
        return self.max_turns < 3 and bool(state["trajectory"]) and not called

    async def env_response(self, messages, state, **kwargs):
        if messages[-1].tool_calls:
            return await super().env_response(messages, state, **kwargs)
        told = await add(len(str(messages[-1].content or "")), len(state["trajectory"]))
        return [vf.UserMessage(role="user", content=f"<{json.dumps(told)}>")]


def load_environment(questions: int = 40, turns: int = 3, tool_error: bool = False) -> vf.Environment:
    async def broken(a: int, b: int) -> int:
        """Fails."""
        raise RuntimeError("no adding today")

    broken.__name__ = "add"
    rows = [{"question": f"{i}+{i + 1}?", "answer": str(2 * i + 1)} for i in range(questions)]
    return AddingUp(
        tools=[broken if tool_error else add],
        max_turns=turns,
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[right, short], weights=[0.5, 0.5]),
        stop_errors=[RuntimeError] if tool_error else [],
    )
