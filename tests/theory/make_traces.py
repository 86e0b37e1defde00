"""Makes recorded_traces.json: the mismatch of behaviour and target at every iteration of live runs.

The runs are those of `python runs/equal_steps.py --seeds 5 --iterations 200` (default task, learning rate 3.5e-4):

    python tests/theory/make_traces.py K1=OUT/multi-version-K1-seed-1 K3=OUT/multi-version-K3-seed-3
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from offbeat.report.read import read_run
from offbeat.report.story import tell

TRACES = Path(__file__).with_name("recorded_traces.json")


def main() -> None:
    traces = {}
    for argument in sys.argv[1:]:
        name, _, directory = argument.partition("=")
        reports = [trained.report for _, _, trained in tell(read_run(Path(directory))).publishes]
        traces[name] = [round(math.sqrt(2 * max(0.0, report.policy_lag_kl)), 4) for report in reports]
    TRACES.write_text(json.dumps(traces) + "\n")


if __name__ == "__main__":
    main()
