"""Claims R9, R11, R12: what deep learners do in the market, and a reconstruction of arXiv 2606.09884 under stated
assumptions.

The paper's parameters are not public, so its numbers (synchronous .69 +- .11, asynchronous about .36, least .28
with latency, critics diverging at rate 5) are shown beside ours and never demanded; the sensitivity table varies
what it leaves open. Every study is a list of variants of one base; each variant is a run or sweep in its own
directory, and the same command goes on where it stopped.

python runs/market_learners.py phase|headline|divergence|sensitivity|average-reward --out out/learners
[--events 50000] [--seeds 10] [--only VARIANT] [--set section.key=value]

Differences between cells are `runs/market_contrasts.py`'s; docs/market_runs.md has the commands of its numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from offbeat.commands.market_run_page import run_page
from offbeat.market.learners.certificate import critic_bound
from offbeat.market.learners.outcome import outcome, told
from offbeat.market.learners.parts import train
from offbeat.market.learners.runfile import begin, read_market_run, write_whole
from offbeat.market.learners.settings import load_study

COMMON, LATE = "market.clock=common", "market.latencies=[0.0, 1.0]"
RATES = "market.rates=[0.5, 1.0, 2.0, 5.0]"
CALVANO_BOX, NARROW_BOX = "market.box=0.1", "market.box=[1.0, 2.0]"
BASE = ["learner.hidden=[32, 32]", "learner.batch=32", "learner.every=4", "learner.tau=0.02"]
STEPS = ["learner.actor_rate=0.0003", "learner.critic_rate=0.002"]
"""What every study has but where a variant says otherwise: two to four inputs need no larger networks, and an update
every fourth round with longer steps learns in a quarter of the time.
"""
GRID = [RATES, "market.latencies=[0.0, 0.5, 1.0, 2.0]", "run.parts=2"]
ADVANTAGE_RATE, TD3 = "learner.critic=advantage-rate", "learner.algorithm=td3"
NO_TARGETS, PATIENT = "learner.tau=1.0", ["learner.discount=event", "learner.gamma=0.99"]
LARGE_STEPS = ["learner.critic_rate=0.02", "learner.actor_rate=0.003"]

STUDIES: dict[str, dict[str, list[str]]] = {
    "phase": {"ddpg": GRID},
    "headline": {
        "synchronous": [COMMON],
        "random instants, together": ["market.clock=common-poisson"],
        "synchronous, no future (gamma 0)": [COMMON, "learner.discount=event", "learner.gamma=0.0"],
        "alternating": ["market.clock=alternating"],
        "asynchronous, by latency": ["market.latencies=[0.0, 0.5, 1.0, 2.0, 5.0]"],
    },
    "divergence": {
        "ddpg": [RATES],
        "ddpg, fixed gamma .95": [RATES, "learner.discount=event"],
        "ddpg, fixed gamma .99": [RATES, *PATIENT],
        "ddpg, large steps": [RATES, *LARGE_STEPS],
        "ddpg, large steps, fixed gamma .95": [RATES, *LARGE_STEPS, "learner.discount=event"],
        "ddpg, large steps, advantage rate": [RATES, *LARGE_STEPS, ADVANTAGE_RATE],
        "ddpg, large steps, gradient alignment": [RATES, *LARGE_STEPS, "align.mode=cap", "align.c_high=0.5"],
        "td3, large steps": [RATES, *LARGE_STEPS, TD3],
        "ddpg, large steps, no target networks": [RATES, *LARGE_STEPS, NO_TARGETS],
        "ddpg, large steps, no targets, gamma .99": [RATES, *LARGE_STEPS, NO_TARGETS, *PATIENT],
        "td3, large steps, no targets, gamma .99": [RATES, *LARGE_STEPS, NO_TARGETS, *PATIENT, TD3],
        "ddpg, large steps, no targets, adv. rate": [RATES, *LARGE_STEPS, NO_TARGETS, ADVANTAGE_RATE],
    },
    "sensitivity": {
        "box [nash - .1 D, cartel + .1 D]": [LATE, CALVANO_BOX],
        "synchronous, box [nash - .1 D, cartel + .1 D]": [COMMON, CALVANO_BOX],
        "box [1, 2]": [LATE, NARROW_BOX],
        "synchronous, box [1, 2]": [COMMON, NARROW_BOX],
        "prices only": [LATE, "market.observe=prices"],
        "noise without memory": [LATE, "learner.memory=0.0"],
        "noise ends at .1": [LATE, "exploration.end=0.1"],
        "networks 64 x 64, batch 64": [LATE, "learner.hidden=[64, 64]", "learner.batch=64", "learner.every=2"],
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
            "learner.every=2",
            "learner.actor_rate=0.001",
            "run.warmup=512",
        ]
        for firms in (2, 3)
    },
}


def play(directory: Path, overrides: list[str], cores: int | None = None) -> dict[str, object]:
    """One variant to its end; its outcome, which is also left in the directory beside a page."""
    if not (directory / "run.json").exists():
        study = load_study(None, overrides)
        kind = "run" if len(study.cells) == 1 else "sweep"
        begin(directory, study, kind, [critic_bound(study, rate) for rate, _ in study.cells])

    def said(done: int, total: int) -> None:
        print(f"\r{directory.name}: {done} of {total} rounds", end="", file=sys.stderr)

    train(directory, said, cores)
    run = read_market_run(directory)
    cells = outcome(run, lambda words: None)
    found = told(run, cells) | {"diverged_runs": int(run.diverged.sum())}
    write_whole(directory / "outcome.json", json.dumps(found, indent=1))
    run_page(directory / "report.html", run, cells)
    return found


def table(name: str, results: dict[str, dict]) -> str:
    """One line a cell: gain with its interval, with and without the diverged, beside the null values of its box."""
    lines = [
        f"{name}: noise-free profit gain, mean [95 % over seeds] (SD); without the diverged; diverged; "
        f"largest |Q| over its bound; midpoint, random"
    ]
    for variant, found in results.items():
        for cell in found["cells"]:
            every, kept = cell["quiet_gain"]["all"], cell["quiet_gain"]["without_diverged"]
            nulls = found["null_gains"]
            lines.append(
                f"{variant:45} rate {cell['rate']:<4g} latency {cell['latency']:<4g} {_told(every)}; {_told(kept)}; "
                f"{cell['diverged']}/{every['count']}; {_told(cell['critic_peak'])}; "
                f"{nulls['midpoint']:.2f}, {nulls['random']:.2f}; {cell.get('verdict')}"
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
    parser.add_argument(
        "--only", choices=[name for study in STUDIES.values() for name in study], help="this variant alone"
    )
    parser.add_argument("--set", action="append", default=[], help="section.key=value for every variant")
    parser.add_argument("--cores", type=int, help="processes at most; default all cores")
    asked = parser.parse_args()
    results: dict[str, dict] = {}
    for number, (variant, overrides) in enumerate(STUDIES[asked.study].items()):
        if asked.only not in (None, variant):
            continue
        firms = 3 if variant == "3 firms" else 2
        events = asked.events * firms if asked.study == "average-reward" else asked.events  # periods of all firms
        every = [
            *BASE,
            *STEPS,
            "run.parts=1",
            f"run.events={events}",
            f"run.seeds={asked.seeds}",
            *overrides,
            *asked.set,
        ]
        results[variant] = play(asked.out / f"{asked.study}-{number}", every, asked.cores)
    print(file=sys.stderr)
    print(table(asked.study, results))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
