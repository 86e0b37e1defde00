"""Two processes that share every update are one: the same losses, statistics and weights, alignment control too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offbeat
from offbeat.learner.ranks import Ranks
from offbeat.records import Batch
from tests.learner.ranks_worker import CASES, train

STEPS = 20


@pytest.fixture(scope="module")
def made(
    model_dir: Path, sample_batch: Callable[..., Batch], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What one process makes of the batches, and what each of two."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "model").symlink_to(model_dir)
    drawn = [sample_batch(groups=4, seed=seed) for seed in range(4)]
    batches = [Batch(step, drawn[step % len(drawn)].groups) for step in range(STEPS)]
    (folder / "batches").write_bytes(msgspec.msgpack.encode(batches))
    path = os.pathsep.join([str(Path(offbeat.__file__).parents[1]), str(Path(__file__).parents[2])])
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.learner.ranks_worker", str(rank), "2", str(folder)],
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    alone = {case: train(folder / "model", batches, case) for case in CASES}
    assert [worker.wait(timeout=200) for worker in workers] == [0, 0]
    return [alone, *(msgspec.json.decode((folder / f"made-{rank}.json").read_bytes()) for rank in range(2))]


def flat(report: dict[str, Any]) -> dict[str, float]:
    """Every number of a report by its path, but for times."""
    found: dict[str, float] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, entry in value.items():
                walk(f"{path}.{key}", entry)
        elif isinstance(value, list | tuple):
            for index, entry in enumerate(value):
                walk(f"{path}.{index}", entry)
        elif isinstance(value, float | int) and not path.endswith("_seconds"):
            found[path] = float(value)

    walk("", report)
    return found


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(made: list[dict[str, Any]], case: str) -> None:
    alone, two, _ = (results[case] for results in made)
    assert len(alone["reports"]) == len(two["reports"]) == STEPS
    for one, other in zip(alone["reports"], two["reports"], strict=True):
        assert flat(one) == pytest.approx(flat(other), abs=1e-5, rel=1e-4)
    assert [r["loss"] for r in alone["reports"]] == pytest.approx([r["loss"] for r in two["reports"]], abs=1e-5)
    assert alone["parameters"] == pytest.approx(two["parameters"], abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_both_take_the_same_step_bit_for_bit(made: list[dict[str, Any]], case: str) -> None:
    _, first, second = (results[case] for results in made)
    assert first["parameters"] == second["parameters"]


def test_alignment_control_had_something_to_do(made: list[dict[str, Any]]) -> None:
    reports = made[1]["gac"]["reports"]
    assert sum(report["alignment"]["projected"] + report["alignment"]["skipped"] for report in reports) >= 2


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 6))
def test_every_piece_of_work_has_one_taker_and_loads_are_even(sizes: list[int], count: int) -> None:
    taken = []
    for rank in range(count):
        ranks = Ranks()
        ranks.rank, ranks.count = rank, count
        taken.append(ranks.mine(sizes))
    assert all(sum(takers) == 1 for takers in zip(*taken, strict=True))
    loads = [sum(size for size, mine in zip(sizes, takers, strict=True) if mine) for takers in taken]
    assert max(loads) - min(loads) <= max(sizes, default=0)
