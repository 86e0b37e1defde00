"""What looking for cycles of garbage costs: `offbeat simulate dora-64` as it is, beside the same with the intervals
that Python sets by itself, in turn.

python runs/garbage.py [--repeats 5] [--arguments "simulate dora-64 --schedules multi-version,sync"]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

AS_IT_IS = "from offbeat.cli import main; main()"
USUAL = "import gc, offbeat.cli as cli; cli.SELDOM = gc.get_threshold(); cli.main()"


def seconds(code: str, arguments: list[str]) -> float:
    """Processor time of one command, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--arguments", default="simulate dora-64 --schedules multi-version,sync")
    asked = parser.parse_args()
    words = asked.arguments.split()
    pairs = [(seconds(AS_IT_IS, words), seconds(USUAL, words)) for _ in range(asked.repeats)]
    mine, usual = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"offbeat {asked.arguments}: {mine:.2f} s as it is, {usual:.2f} s usually, ratio {ratio:.2f} ({len(pairs)})")


if __name__ == "__main__":
    main()
