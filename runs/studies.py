"""Claims about stability, each measured by one `offbeat study`; a claim stands only where the study's verdicts say so.

    python runs/studies.py --seeds 5 [--first-seed 5] --out out/studies [bias two-constraint collapse gac lag-one]

One after the other, each on all cores; the same --out goes on where it stopped. Prints the verdicts and what a study
cost in seconds of one core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

CLAIMS = {
    "bias": "the surrogate gradient's bias from stale rollouts is linear in S and in the learning rate",
    "two-constraint": "eta_max falls as 1 / S where staleness binds, is flat where the horizon does, and is predicted",
    "collapse": "beyond the edge the time of collapse is inverse to the learning rate and does not depend on S",
    "gac": "projection rescues what staleness costs at the edge, and none of its controls explains that",
    "lag-one": "data one publish old is better than fresh data, and the clip is why",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CLAIMS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/studies"))
    given = parser.parse_args()
    for name in given.names:
        print(f"{name}: {CLAIMS[name]}?", flush=True)
        seeds = ["--seeds", str(given.seeds), "--first-seed", str(given.first_seed)]
        command = [sys.executable, "-m", "offbeat.cli", "study", name, *seeds, "--json", "--out", str(given.out / name)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.returncode)
        found = json.loads(done.stdout)
        for verdict in found["verdicts"]:
            print(f"  {verdict}")
        print(f"  {found['cells']} cells, {found['core_seconds']:.0f} s of one core; {found['page']}\n", flush=True)


if __name__ == "__main__":
    main()
