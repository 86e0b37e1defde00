"""Claim: greedy, with the same weights, vLLM and the local engine agree on at least 99 % of the tokens over 1,000 short
prompts of the default task with its preset model; at temperature 1 with the same seeds, too.

Each engine runs in its own environment; tokens are compared place by place, and the first divergence is shown. The
preset is warm-started first where no run has done so yet (two minutes).

    make vllm
    python runs/vllm_agreement.py --vllm-python .venv-vllm/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
sys.path.insert(0, str(SOURCE))

from offbeat.ports import Generator, Request, Sampling  # noqa: E402

BAR = 0.99
SLOTS, CONTEXT = 64, 192


def answers(engine: Generator, weights: Path, prompts: list[list[int]], tokens: int, heat: float) -> list[list[int]]:
    engine.load(0, weights)
    for number, prompt in enumerate(prompts):
        engine.submit(Request(number, 0, tuple(prompt), 1000 + number, tokens, Sampling(temperature=heat)))
    found: dict[int, list[int]] = {}
    while engine.decoded():
        found |= {done.request_id: list(done.token_ids) for done in engine.step()}
    engine.unload(0)
    return [found[number] for number in range(len(prompts))]


def side(given: argparse.Namespace) -> None:
    """One engine's answers to all that is asked, as JSON into a file."""
    work = json.loads(given.work.read_text())
    model = Path(work["model"])
    engine: Generator
    if given.side == "vllm":
        from offbeat.backends.vllm.engine import VllmEngine

        engine = VllmEngine(model, SLOTS, CONTEXT)
    else:
        from offbeat.rollout.engine import Engine

        engine = Engine(model, SLOTS, CONTEXT)
    weights = model / "model.safetensors"
    made = [answers(engine, weights, work["prompts"], work["tokens"], heat) for heat in work["temperatures"]]
    given.work.with_suffix(f".{given.side}").write_text(json.dumps(made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--side", choices=("local", "vllm"), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side(given)
        return
    from offbeat.models import prepare_policy
    from offbeat.models.tokens import encode_prompt, load_tokenizer
    from offbeat.settings import Settings
    from offbeat.tasks import make_task

    settings = Settings()
    policy = prepare_policy(settings, lambda note, share: print(f"{note} {share:.0%}", file=sys.stderr))
    tokenizer, task = load_tokenizer(policy), make_task(settings.task, 0)
    prompts = [encode_prompt(tokenizer, task.prompt(number).text) for number in range(given.prompts)]
    heats = [0.0, 1.0]
    with tempfile.TemporaryDirectory() as made:
        work = Path(made) / "work.json"
        asked = {"model": str(policy), "prompts": prompts, "tokens": given.tokens, "temperatures": heats}
        work.write_text(json.dumps(asked))
        for name, python in (("local", sys.executable), ("vllm", given.vllm_python)):
            kept = os.environ | {"NUMBA_CACHE_DIR": str(Path(made) / name)}  # two versions of numba, two directories
            subprocess.run([python, __file__, "--side", name, "--work", str(work)], check=True, env=kept)
        ours, theirs = (json.loads(work.with_suffix(f".{name}").read_text()) for name in ("local", "vllm"))
    for heat, local, vllm in zip(heats, ours, theirs, strict=True):
        total = sum(max(len(a), len(b)) for a, b in zip(local, vllm, strict=True))
        same = sum(x == y for a, b in zip(local, vllm, strict=True) for x, y in zip(a, b, strict=False))
        print(f"temperature {heat:g}: {same} of {total} tokens agree, {same / total:.4%} (bar {BAR:.0%})")
        first = next((number for number in range(len(prompts)) if local[number] != vllm[number]), None)
        if first is not None:
            pairs = zip(local[first], vllm[first], strict=False)
            place = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(local[first]), len(vllm[first])))
            print(
                f"  first divergence: prompt {first}, token {place}: {local[first][place:]} and {vllm[first][place:]}"
            )


if __name__ == "__main__":
    main()
