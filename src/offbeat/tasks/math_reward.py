"""math-verify: is what a response says last the same number, expression, set or interval as the answer?

The library is imported by the first reward. It bounds its own time with an alarm signal, so it is for a process's main
thread, as the scorer's. Knows no task.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from offbeat.errors import TaskError
from offbeat.tasks.verdicts import one_line


def score(prompt: str, answer: str, response: str) -> float:
    """1 for the same mathematics, else 0. Raises TaskError for an answer that holds none, and without the library."""
    parse, verify = _library()
    return float(verify(_gold(answer), parse(response)))


@cache
def _gold(answer: str) -> Any:
    parse, _ = _library()
    found = parse(answer) or parse(f"${answer}$")
    if not found:
        raise TaskError(f"the answer {one_line(repr(answer))} holds no mathematics; mend it or the reward")
    return found


@cache
def _library() -> tuple[Any, Any]:
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise TaskError(
            f"task.reward = 'math-verify': cannot be imported ({one_line(str(error))}); run pip install 'offbeat[math]'"
        ) from None
    return parse, verify
