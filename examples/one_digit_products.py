"""An environment of `verifiers` (0.2, 0.3): one-digit products. Right where the last number said is the product; a
short answer is worth a little more. An environment that was installed as a package works the same way."""

import random
import re

import verifiers as vf
from datasets import Dataset


async def right(completion, answer) -> float:
    """The last number of the last message is the product."""
    numbers = re.findall(r"\d+", str(completion[-1].content or "")) if completion else []
    return float(numbers[-1:] == [answer])


async def short(completion) -> float:
    """1 for up to four characters, 0 from forty on."""
    said = len(str(completion[-1].content or "").strip()) if completion else 40
    return min(1.0, max(0.0, (40 - said) / 36))


def load_environment(seed: int = 0) -> vf.Environment:
    pairs = [(a, b) for a in range(2, 10) for b in range(2, 10)]
    random.Random(seed).shuffle(pairs)
    rows = [{"question": f"What is {a} * {b}? Say the number only.", "answer": str(a * b)} for a, b in pairs]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows[16:]),
        eval_dataset=Dataset.from_list(rows[:16]),
        rubric=vf.Rubric(funcs=[right, short], weights=[0.9, 0.1]),
    )
