"""Claims R9, R11, R12: what deep learners do in the market, and a reconstruction of arXiv 2606.09884 under stated
assumptions.

The paper's parameters are not public, so its numbers (synchronous .69 +- .11, asynchronous about .36, least .28
with latency, critics diverging at rate 5) are shown beside ours and never demanded; the sensitivity table varies
what it leaves open. Every study is a list of variants of one base; each variant is a run or sweep in its own
directory, and the same command goes on where it stopped.

python runs/market_learners.py headline|divergence|sensitivity|average-reward --out out/learners [--events 50000]
[--seeds 10]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from offbeat.market.learners.certificate import critic_bound
from offbeat.market.learners.outcome import outcome, told
from offbeat.market.learners.parts import train
from offbeat.market.learners.runfile import begin, read_market_run
from offbeat.market.learners.settings import load_study

COMMON, LATE = "market.clock=common", "market.latencies=[0.0, 0.5, 1.0, 2.0, 5.0]"
RATES = "market.rates=[0.5, 1.0, 2.0, 5.0]"
CALVANO_BOX = "market.box=0.1"

STUDIES: dict[str, dict[str, list[str]]] = {
    "headline": {
        "synchronous": [COMMON],
        "random instants, together": ["market.clock=common-poisson"],
        "alternating": ["market.clock=alternating"],
        "asynchronous, by latency": [LATE],
        "synchronous, no future (gamma 0)": [COMMON, "learner.discount=event", "learner.gamma=0.0"],
    },
    "divergence": {
        "ddpg, e^{-rho tau}": [RATES],
        "ddpg, fixed gamma": [RATES, "learner.discount=event"],
        "ddpg, fixed gamma .99": [RATES, "learner.discount=event", "learner.gamma=0.99"],
        "ddpg, advantage rate": [RATES, "learner.critic=advantage-rate"],
        "ddpg, gradient alignment": [RATES, "align.mode=cap", "align.c_high=1.0"],
        "td3": [RATES, "learner.algorithm=td3"],
    },
    "sensitivity": {
        "base": ["market.latencies=[0.0, 1.0]"],
        "box [nash - .1 D, cartel + .1 D]": ["market.latencies=[0.0, 1.0]", CALVANO_BOX],
        "box [1, 2]": ["market.latencies=[0.0, 1.0]", "market.box=[1.0, 2.0]"],
        "fixed gamma": ["market.latencies=[0.0, 1.0]", "learner.discount=event"],
        "prices only": ["market.latencies=[0.0, 1.0]", "market.observe=prices"],
        "noise without memory": ["market.latencies=[0.0, 1.0]", "learner.memory=0.0"],
        "noise ends at .1": ["market.latencies=[0.0, 1.0]", "exploration.end=0.1"],
        "synchronous, box [nash - .1 D, cartel + .1 D]": [COMMON, CALVANO_BOX],
        "synchronous, box [1, 2]": [COMMON, "market.box=[1.0, 2.0]"],
    },
    "average-reward": {
        f"{firms} firms": [
            COMMON,
            CALVANO_BOX,
            f"demand.quality={[2.0] * firms}",
            f"demand.cost={[1.0] * firms}",
            "market.observe=prices",
            "learner.algorithm=sac",
            "learner.average_reward=true",
            "learner.batch=128",
            "learner.hidden=[256, 256]",
            "run.warmup=512",
        ]
        for firms in (2, 3)
    },
}


def play(directory: Path, overrides: list[str]) -> dict[str, object]:
    """One variant to its end; its outcome."""
    if not (directory / "run.json").exists():
        study = load_study(None, overrides)
        kind = "run" if len(study.cells) == 1 else "sweep"
        begin(directory, study, kind, [critic_bound(study, rate) for rate, _ in study.cells])
    train(
        directory, lambda done, total: print(f"\r{directory.name}: {done} of {total} rounds", end="", file=sys.stderr)
    )
    run = read_market_run(directory)
    return told(run, outcome(run, lambda words: None)) | {"diverged_runs": int(run.diverged.sum())}


def table(name: str, results: dict[str, dict]) -> str:
    """One line a cell: gain with its interval, with and without the diverged, beside the null values of its box."""
    lines = [
        f"{name}: noise-free profit gain, mean [95 % over seeds] (SD); without the diverged; diverged; midpoint, random"
    ]
    for variant, found in results.items():
        for cell in found["cells"]:
            every, kept = cell["quiet_gain"]["all"], cell["quiet_gain"]["without_diverged"]
            nulls = found["null_gains"]
            lines.append(
                f"{variant:45} rate {cell['rate']:<4g} latency {cell['latency']:<4g} {_told(every)}; {_told(kept)}; "
                f"{cell['diverged']}/{every['count']}; {nulls['midpoint']:.2f}, {nulls['random']:.2f}; "
                f"{cell.get('verdict')}"
            )
    return "\n".join(lines)


def _told(e: dict) -> str:
    number = ["nan" if e[k] is None else f"{e[k]:.3f}" for k in ("mean", "low", "high", "sd")]
    return f"{number[0]} [{number[1]}, {number[2]}] ({number[3]})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--out", type=Path, default=Path("out/learners"))
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", help="variants whose name holds this")
    parser.add_argument("--set", action="append", default=[], help="section.key=value for every variant")
    asked = parser.parse_args()
    results: dict[str, dict] = {}
    for number, (variant, overrides) in enumerate(STUDIES[asked.study].items()):
        if asked.only and asked.only not in variant:
            continue
        firms = 3 if variant == "3 firms" else 2
        events = asked.events * firms if asked.study == "average-reward" else asked.events  # periods of all firms
        every = [f"run.events={events}", f"run.seeds={asked.seeds}", *overrides, *asked.set]
        results[variant] = play(asked.out / f"{asked.study}-{number}", every)
    print(file=sys.stderr)
    print(table(asked.study, results))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
