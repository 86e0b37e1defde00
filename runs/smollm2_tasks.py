"""Which reasoning-gym tasks does SmolLM2-135M-Instruct solve now and then, and what do its responses cost?

Mean reward and share of exact answers of the untrained model, sampled at temperature 1 through its chat template, with
the share of groups of 8 whose rewards differ: only these teach anything. What the learning runs are sized from.

    offbeat models get smollm2-135m
    python runs/smollm2_tasks.py models/smollm2-135m [--system "Answer with the number alone."]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import fmean

import torch

from offbeat.models.prompts import encoded_prompt
from offbeat.models.tokens import decode_response, load_tokenizer
from offbeat.ports import Request
from offbeat.rollout.engine import Engine
from offbeat.settings import ReasoningGymTask
from offbeat.tasks import make_task

DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
TASKS = {
    "chain_sum": DIGIT,
    "basic_arithmetic": DIGIT | {"operators": ["+"], "allow_parentheses": False, "allow_negation": False},
    "coin_flip": {},
    "syllogism": {},
    "letter_counting": {"min_words": 2, "max_words": 4},
    "gcd": {"min_value": 2, "max_value": 12},
    "count_bits": {"min_n": 1, "max_n": 64},
    "products": DIGIT,
    "family_relationships": {},
    "simple_equations": {"min_terms": 1, "max_terms": 2, "min_value": 1, "max_value": 9},
    "spell_backward": {"min_word_len": 3, "max_word_len": 4},
    "needle_haystack": {"min_num_statements": 2, "max_num_statements": 3},
    "word_sorting": {"min_words": 2, "max_words": 3},
    "word_sequence_reversal": {"min_words": 2, "max_words": 3},
}
GROUP = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--system", default="", help="system turn before every question")
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(options.model)
    engine = Engine(options.model, slots=64, context=256)
    engine.load(0, options.model / "model.safetensors")
    for name in options.tasks:
        chosen = ReasoningGymTask(name="reasoning-gym", dataset=name, options=TASKS[name], system=options.system)
        task = make_task(chosen, 0)
        prompts = [encoded_prompt(tokenizer, task, i) for i in range(options.prompts)]
        ids = [prompt.token_ids for prompt in prompts]
        for i in range(GROUP * len(prompts)):
            engine.submit(Request(i, 0, ids[i // GROUP], i, options.tokens))
        start, answers = time.perf_counter(), dict[int, tuple[int, ...]]()
        while engine.decoded():
            answers |= {done.request_id: done.token_ids for done in engine.step()}
        seconds = time.perf_counter() - start
        texts = {i: decode_response(tokenizer, answer) for i, answer in answers.items()}
        rewards = {i: task.reward(prompts[i // GROUP], text) for i, text in texts.items()}
        groups = [[rewards[g * GROUP + i] for i in range(GROUP)] for g in range(len(prompts))]
        print(
            f"{name:20} prompt {fmean(map(len, ids)):4.0f} tokens, response {fmean(map(len, answers.values())):4.1f},"
            f" reward {fmean(rewards.values()):.3f}, exact {fmean(r == 1 for r in rewards.values()):.3f},"
            f" groups that differ {fmean(len(set(group)) > 1 for group in groups):.2f},"
            f" {sum(map(len, answers.values())) / seconds:.0f} tok/s; e.g. {texts[0]!r} for {prompts[0].answer!r}",
            flush=True,
        )


if __name__ == "__main__":
    main()
