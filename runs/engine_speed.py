"""How fast the local rollout engine decodes: one version against several, short against heavy-tailed responses,
and against `transformers` generate. Every round runs all cases one after another; ratios are medians over rounds,
so that other load on the machine falls on all cases alike.

    python runs/engine_speed.py --rounds 5 --slots 64
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from offbeat.ports import Request
from offbeat.rollout.engine import Engine

VOCAB = 100


def build(directory: Path, versions: int, layers: int, kv_heads: int) -> tuple[list[LlamaForCausalLM], int]:
    """Random Llama models of width 128 without an eos token: lengths are set by `max_new_tokens` alone."""
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=kv_heads, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None, initializer_range=0.1,
    )  # fmt: skip
    models = []
    for version in range(versions):
        torch.manual_seed(version)
        models.append(LlamaForCausalLM(config).eval())
        models[-1].save_pretrained(directory / str(version))
    return models, sum(parameter.numel() for parameter in models[0].parameters())


def lengths(kind: str, count: int, rng: np.random.Generator) -> list[int]:
    """`short`: 5 to 15 tokens. `tailed`: the same, but one in ten is 20 to 190 tokens long. `long`: 96 each."""
    if kind == "long":
        return [96] * count
    short = rng.integers(5, 16, size=count)
    tail = np.where(rng.random(count) < 0.1, rng.integers(20, 191, size=count), short)
    return [int(n) for n in (tail if kind == "tailed" else short)]


def requests(kind: str, count: int, versions: int, group: int, seed: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    sizes, made = lengths(kind, count, rng), []
    for number, size in enumerate(sizes):
        if number % group == 0:
            prompt = tuple(int(t) for t in rng.integers(1, VOCAB, size=rng.integers(10, 60)))
        made.append(Request(number, number // group % versions, prompt, number, size))
    return made


def rate(engine: Engine, work: list[Request]) -> float:
    """Generated tokens per second of engine time while the queue is never empty: the drain is not counted."""
    for request in work:
        engine.submit(request)
    tokens, start = 0, time.perf_counter()
    while len(engine.decoded()) > engine.slots:
        tokens += sum(len(done.span.token_ids) for done in engine.step())
    seconds = time.perf_counter() - start
    tokens += sum(engine.decoded().values())
    engine.abort(tuple(engine.decoded()))
    return tokens / seconds


def transformers_rate(model: LlamaForCausalLM, slots: int, new_tokens: int) -> float:
    prompt = torch.randint(1, VOCAB, (slots, 30))
    start = time.perf_counter()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0, max_new_tokens=new_tokens,
                   pad_token_id=0)  # fmt: skip
    return slots * new_tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    cases = [(kind, alive) for kind in ("short", "tailed", "long") for alive in (1, options.versions)]
    rates: dict[str, list[float]] = {f"{kind}, {alive} version(s)": [] for kind, alive in cases}
    rates["transformers generate, 96 tokens"] = []
    with tempfile.TemporaryDirectory() as made:
        models, parameters = build(Path(made), options.versions, options.layers, options.kv_heads)
        engine = Engine(Path(made) / "0", slots=options.slots, context=384)
        for version in range(options.versions):
            engine.load(version, Path(made) / str(version) / "model.safetensors")
    for turn in range(-1, options.rounds):
        for kind, alive in cases:
            count = max(3 * options.slots, options.requests // (8 if kind == "long" else 1))
            measured = rate(engine, requests(kind, count, alive, options.group, turn + 1))
            if turn >= 0:
                rates[f"{kind}, {alive} version(s)"].append(measured)
        if turn >= 0:
            rates["transformers generate, 96 tokens"].append(transformers_rate(models[0], options.slots, 96))
    report(parameters, rates, options.json)


def report(parameters: int, rates: dict[str, list[float]], as_json: bool) -> None:
    """Each row's paired ratio is to one version of its own kind; that of `transformers` to `long`."""
    table = {}
    for name, values in rates.items():
        kind = name.partition(",")[0]
        base = rates.get(f"{kind}, 1 version(s)", rates["long, 1 version(s)"])
        ratio = median(value / one for value, one in zip(values, base, strict=True))
        table[name] = {"tokens_per_second": median(values), "of_one_version": ratio}
    if as_json:
        print(json.dumps({"parameters": parameters, "cases": table}))
        return
    print(f"{parameters} parameters\n{'case':36}{'tok/s':>10}{'of one version':>16}")
    for name, row in table.items():
        print(f"{name:36}{row['tokens_per_second']:>10.0f}{row['of_one_version']:>16.2f}")


if __name__ == "__main__":
    main()
