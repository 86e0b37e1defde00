"""Two processes that share every update are one: the same losses, statistics and weights, alignment control too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from offbeat.errors import WeightsError
from offbeat.learner.ranks import Ranks
from offbeat.records import Batch
from tests.forked import begin, ended
from tests.learner.ranks_worker import CASES, FEW, HALF, RECOMPUTED, ROUNDED, SHARDED, resumed, saved_half_way, train

pytestmark = pytest.mark.xdist_group("ranks")
"""They share what two processes made."""
STEPS = 20
THROUGH_MODULE = {"recompute_activations": True}
"""What one process is compared with: as the sharded ones it does not go through compiled loops."""


@pytest.fixture(scope="module")
def folder(model_dir: Path, sample_batch: Callable[..., Batch], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the policy, the batches, and what one process makes of half of them."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "model").symlink_to(model_dir)
    drawn = [sample_batch(groups=4, seed=seed) for seed in range(4)]
    batches = [Batch(step, drawn[step % len(drawn)].groups) for step in range(STEPS)]
    (folder / "batches").write_bytes(msgspec.msgpack.encode(batches))
    return folder


@pytest.fixture(scope="module")
def made(folder: Path) -> list[dict[str, Any]]:
    """What one process makes of the batches, and what each of two."""
    model, batches = folder / "model", batches_in(folder)
    halves = saved_half_way(model, folder / "by-one", batches, RECOMPUTED)
    errors = [folder / f"errors-{rank}" for rank in range(2)]
    workers = [
        begin("tests.learner.ranks_worker", str(rank), "2", str(folder), errors=errors[rank]) for rank in range(2)
    ]
    alone = {case: train(model, batches, CASES[case]) for case in CASES} | {"saved": halves}
    alone |= {f"fsdp2 {case}": train(model, batches, SHARDED[case] | THROUGH_MODULE) for case in SHARDED}
    for case, chosen in ROUNDED.items():
        alone[case] = train(model, batches[:FEW], chosen)
        alone[f"fsdp2 {case}"] = train(model, batches[:FEW], chosen | THROUGH_MODULE)
    for worker, file in zip(workers, errors, strict=True):
        ended(worker, file)
    return [alone, *(msgspec.json.decode((folder / f"made-{rank}.json").read_bytes()) for rank in range(2))]


def batches_in(folder: Path) -> list[Batch]:
    return msgspec.msgpack.decode((folder / "batches").read_bytes(), type=list[Batch])


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


def apart(step: int) -> float:
    """What sums taken in another order may come to at a step: each is made of the one before."""
    return 2e-6 * (1 + step)


def assert_same(one: dict[str, Any], other: dict[str, Any], steps: int = STEPS) -> None:
    """But for rounding. Who was restored here has only version 0 to measure drift against: other lags are left out."""
    assert len(one["reports"]) == len(other["reports"]) == steps
    for step, (mine, theirs) in enumerate(zip(one["reports"], other["reports"], strict=True), STEPS - steps):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=apart(step))
        mine, theirs = flat(mine), flat(theirs)
        missing = theirs.keys() - mine.keys()
        assert not [name for name in missing if "drift" not in name and "mismatch" not in name]
        shared = {name: theirs[name] for name in theirs if name not in missing}
        assert mine == pytest.approx(shared, abs=apart(step), rel=1e-4)
    assert one["parameters"] == pytest.approx(other["parameters"], abs=apart(STEPS))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(made: list[dict[str, Any]], case: str) -> None:
    assert_same(made[1][case], made[0][case])


@pytest.mark.parametrize("case", SHARDED)
def test_two_halves_are_one(made: list[dict[str, Any]], case: str) -> None:
    """FSDP2: each process holds about half of parameters and optimizer state, and what they do is the same."""
    alone, *two = (results[f"fsdp2 {case}"] for results in made)
    assert_same(two[0], alone)
    assert flat(alone["reports"][-1]).keys() == flat(two[0]["reports"][-1]).keys()
    for what in ("held", "state"):
        assert all(0.4 < half[what] / alone[what] < 0.6 for half in two), what
    assert sum(half["held"] for half in two) == alone["held"]


@pytest.mark.parametrize("case", ROUNDED)
@pytest.mark.parametrize("how", ["", "fsdp2 "])
def test_products_in_bfloat16_are_shared_too(made: list[dict[str, Any]], case: str, how: str) -> None:
    alone, both, _ = (results[how + case]["reports"][0] for results in made)
    assert both["loss"] == pytest.approx(alone["loss"], abs=0.01)
    assert both["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=0.1)
    assert both["gradient_norm"] != made[0]["plain"]["reports"][0]["gradient_norm"]


@pytest.mark.parametrize("case", [*CASES, *ROUNDED, *(f"fsdp2 {case}" for case in SHARDED | ROUNDED)])
def test_both_take_the_same_step_bit_for_bit(made: list[dict[str, Any]], case: str) -> None:
    _, first, second = (results.get(case) for results in made)
    assert first["parameters"] == second["parameters"]


def test_shards_go_on_bit_for_bit(made: list[dict[str, Any]]) -> None:
    _, first, second = made
    for each in (first, second):
        assert each["resumed"]["parameters"] == first["saved"]["parameters"]
        losses = [[report["loss"] for report in each[how]["reports"]] for how in ("resumed", "saved")]
        assert losses[0] == losses[1]


def test_shards_go_on_with_another_number_of_processes(made: list[dict[str, Any]], folder: Path) -> None:
    """Two halves with one process, a whole with two."""
    unbroken = made[0]["saved"]
    alone = resumed(folder / "model", folder / "by-two", batches_in(folder), RECOMPUTED)
    assert_same(alone, unbroken, STEPS - HALF)
    assert_same(made[1]["taken over"], unbroken, STEPS - HALF)


def test_shards_are_one_model_to_everybody_else(made: list[dict[str, Any]], folder: Path) -> None:
    """Version file, exported directory and scores are those of one process."""
    assert made[1]["saved"]["digest"] == made[2]["saved"]["digest"]
    assert made[1]["saved"]["scores"] == pytest.approx(made[0]["saved"]["scores"], rel=apart(STEPS))
    weights = [load_file(folder / where / "model.safetensors") for where in ("by-two", "by-one", "by-two.model")]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], atol=apart(STEPS)), name
        assert torch.equal(tensor, weights[2][name]), name
    AutoModelForCausalLM.from_pretrained(folder / "by-two.model")
    assert not list(folder.rglob("*.distcp")), "no pickle"


def test_damaged_shards_are_named(made: list[dict[str, Any]], folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "by-two", tmp_path / "version")
    part = next((tmp_path / "version" / "shards").iterdir())
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(WeightsError, match="shards: damaged"):
        resumed(folder / "model", tmp_path / "version", [], RECOMPUTED)


def test_alignment_control_had_something_to_do(made: list[dict[str, Any]]) -> None:
    for case in ("gac", "fsdp2 recomputed, gac"):
        reports = made[1][case]["reports"]
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


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 6))
def test_passes_made_together_are_as_many_of_everybody_and_each_piece_is_made_once(
    sizes: list[int], count: int
) -> None:
    ranks = Ranks()
    ranks.count = count
    rounds = ranks.together(sizes)
    assert all(len(each) == count for each in rounds)
    assert sorted(index for each in rounds for index in each if index is not None) == list(range(len(sizes)))
    assert len(rounds) == -(-len(sizes) // count)
    for earlier, later in pairwise(rounds):
        assert min(sizes[i] for i in earlier if i is not None) >= max(sizes[i] for i in later if i is not None)
