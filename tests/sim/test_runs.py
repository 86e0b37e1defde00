"""The scripts in runs/ that make the claims of docs/simulator.md still run, at smoke size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).resolve().parents[2] / "runs"


def script(name: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, RUNS / name, *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ablations() -> None:
    lines = script("ablations.py", "--smoke").splitlines()[1:]
    assert {line.split()[0] for line in lines} == {"orchestrator", "legacy", "bound", "transfer", "k", "tail"}


def test_fault_schedules() -> None:
    assert " 0 runs with a breach" in script("fault_schedules.py", "--seeds", "10", "--first", "400")


def test_simulator_scale() -> None:
    found = json.loads(script("simulator_scale.py", "--one", "64", "--iterations", "4"))
    assert found["microseconds_per_event"] > 0


@pytest.mark.parametrize("text", ["T(N) = 174.0 s + 19661 accelerator-s / N"])
def test_training_time_of_the_two_synchronous_rows(text: str) -> None:
    code = (
        "import dora_tables as d; print('T(N) = {:.1f} s + {:.0f} accelerator-s / N'.format(*d.calibrate_training()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=RUNS)
    assert done.stdout.strip() == text
