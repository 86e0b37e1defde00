"""counting: count on from a number in equal steps, as often as the label says. Most counts are short, a few very long.

A change of prompts, answers or rewards makes a new file (v2), never a new meaning of this one.
Example: "c17+2=" (three numbers from 17 on, 2 apart) has the gold answer "c17b19a21".
"""

from __future__ import annotations

from random import Random

from offbeat.settings import CountingTask
from offbeat.tasks.labelled import LabelledTask, labels, write_numbers
from offbeat.tasks.split import Question


def counting(settings: CountingTask, seed: int) -> LabelledTask:
    """Counts of min_count to max_count numbers; the start is uniform on 0..max_start, the step on 1..max_step."""

    def question(count: int, random: Random) -> Question:
        start, step = random.randint(0, settings.max_start), random.randint(1, settings.max_step)
        numbers = (start + i * step for i in range(count))
        return Question(f"{labels(count)[0]}{start}+{step}=", write_numbers(numbers))

    counts = range(settings.min_count, settings.max_count + 1)
    return LabelledTask(settings.name, seed, counts, settings.tail, question)
