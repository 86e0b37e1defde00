"""python-tool: an expression too large for the head, and a tool that runs Python: an episode of a few turns.

What the policy writes between < and > is a program. It is run where it can do no harm (`sandbox`); what it prints, and
a semicolon, is what the policy reads next. What it says after that is its answer, unless it writes another program.
Example: "37*24+5=" may become "<37*24+5>" "893;" "893". The reward is 1 for the right number, else 0.
A change of prompts, answers or rewards makes a new file (v1), never a new meaning of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from offbeat.errors import OutOfRoom
from offbeat.eventtime.streams import stream_seed
from offbeat.ports import Agent
from offbeat.records import Prompt
from offbeat.settings import PythonToolTask
from offbeat.tasks.sandbox import Limits, check_confinement, run_python
from offbeat.tasks.split import EndlessSource, Question, Side
from offbeat.tasks.verdicts import check_reward

SAMPLE = 32
SHOWN = 64
"""Characters of a tool's output that the policy reads."""


class PythonTool:
    """`a*b+c` of numbers of exactly `digits` digits. A gold answer is a whole episode: program, output, number."""

    name = "python-tool"

    def __init__(self, settings: PythonToolTask, seed: int) -> None:
        self._seed = seed
        self._least = 10 ** (settings.digits - 1) if settings.digits > 1 else 0
        self._most = 10**settings.digits - 1
        self._calls = settings.most_calls
        self._limits = Limits(seconds=settings.tool_seconds)
        self._confined = False
        self._source = EndlessSource(self.name, self.name, self._draw)

    def prompt(self, prompt_id: int) -> Prompt:
        return self._source.prompt(prompt_id)

    def held_out(self, count: int) -> list[Prompt]:
        return self._source.held_out(count)

    def parts(self, prompt: Prompt) -> list[tuple[str, bool]]:
        """A gold answer: the program, what the tool gives, the number."""
        program, closed, rest = prompt.answer.partition(">")
        shown, semicolon, number = rest.partition(";")
        return [(program + closed, True), (shown + semicolon, False), (number, True)]

    def reward(self, prompt: Prompt, response: str) -> float:
        """Of a whole episode as one text: what stands behind the last output of the tool is the answer."""
        return float(_final(response) == _final(prompt.answer))

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        check_reward(self, [*map(self.prompt, range(SAMPLE)), *self.held_out(1)], calling)

    async def episode(self, prompt: Prompt, agent: Agent) -> float:
        """Raises TaskError where this machine cannot confine a program."""
        if not self._confined:
            await check_confinement()
            self._confined = True
        messages = [{"role": "user", "content": prompt.text}]
        for _ in range(self._calls + 1):
            try:
                said = await agent.say(messages, stop=(">",))
            except OutOfRoom:
                return 0.0
            _, opened, program = said.rpartition("<")
            if not opened:
                return float(said.strip() == _final(prompt.answer))
            printed = await run_python(program, self._limits)
            shown = printed.text.strip()[:SHOWN] or printed.ended
            messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": f"{shown};"}]
        return 0.0

    def _draw(self, side: Side, index: int) -> Question:
        random = Random(stream_seed(self._seed, self.name, side, index))
        a, b, c = (random.randint(self._least, self._most) for _ in range(3))
        value = a * b + c
        return Question(f"{a}*{b}+{c}=", f"<{a}*{b}+{c}>{value};{value}")


def _final(text: str) -> str:
    return text.rpartition(";")[2].strip()
