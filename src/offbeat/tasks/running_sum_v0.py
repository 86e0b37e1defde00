"""running-sum: add a list of numbers, writing every partial sum. Short lists are common, long ones heavy-tailed.

A change of prompts, answers or rewards makes a new file (v1), never a new meaning of this one.
Example: "c4b7a8=" (4 + 7 + 8, labelled) has the gold answer "c4b11a19".
"""

from __future__ import annotations

from itertools import accumulate
from random import Random

from offbeat.settings import RunningSumTask
from offbeat.tasks.labelled import LabelledTask, write_numbers
from offbeat.tasks.split import Question


def running_sum(settings: RunningSumTask, seed: int) -> LabelledTask:
    """Lists of min_terms to max_terms terms, each uniform on 1..max_term."""

    def question(count: int, random: Random) -> Question:
        terms = [random.randint(1, settings.max_term) for _ in range(count)]
        return Question(f"{write_numbers(terms)}=", write_numbers(accumulate(terms)))

    counts = range(settings.min_terms, settings.max_terms + 1)
    return LabelledTask(settings.name, seed, counts, settings.tail, question)
