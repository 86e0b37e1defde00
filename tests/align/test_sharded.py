"""Two processes (gloo) do what one does: replicated (DDP), sharded (FSDP2), both at once (a mesh of two dimensions)."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.align.sharded_worker import CASES, train
from tests.forked import begin, ended

pytestmark = pytest.mark.xdist_group("sharded")
"""They share what two processes made."""
torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes has seen, by way of training and case."""
    folder = tmp_path_factory.mktemp("sharded")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    errors = [folder / f"errors-{rank}" for rank in range(2)]
    processes = [
        begin("tests.align.sharded_worker", str(rank), str(port), str(folder / f"{rank}.json"), errors=errors[rank])
        for rank in range(2)
    ]
    for process, file in zip(processes, errors, strict=True):
        ended(process, file)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def assert_equal(left: dict[str, Any], right: dict[str, Any], tolerance: float) -> None:
    for a, b in zip(left["steps"], right["steps"], strict=True):
        assert a["regime"] == b["regime"]
        for key in ("cosine", "controlled", "update", "gain", "norm", "kept"):
            assert a[key] == (None if b[key] is None else pytest.approx(b[key], abs=tolerance)), key
        lags = {int(lag): cosine for lag, cosine in b["lags"].items()}
        assert {int(lag): cosine for lag, cosine in a["lags"].items()} == {
            lag: None if cosine is None else pytest.approx(cosine, abs=tolerance) for lag, cosine in lags.items()
        }
    for a, b in zip(left["parameters"], right["parameters"], strict=True):
        assert a == pytest.approx(b, abs=tolerance)


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "hsdp"])
@pytest.mark.parametrize("case", CASES)
def test_sharded_equals_unsharded(made: list[dict[str, Any]], way: str, case: str) -> None:
    alone = train(case)
    for process in made:
        assert_equal(process[f"{way}/{case}"], alone, tolerance=2e-4)
    assert made[0][f"{way}/{case}"] == made[1][f"{way}/{case}"]  # to the last bit: all decide alike


def test_the_cases_are_not_idle() -> None:
    regimes = {case: {step["regime"] for step in train(case)["steps"]} for case in CASES}
    assert "projected" in regimes["cap"]
    assert {"skipped", "released"} <= regimes["orth-applied"]


def test_broken_on_one_process_is_invalid_on_all(made: list[dict[str, Any]]) -> None:
    for process in made:
        regimes = [step["regime"] for step in process["fsdp2/broken"]["steps"]]
        assert [number for number, regime in enumerate(regimes) if regime == "invalid"] == [0, 2, 3]


@pytest.mark.parametrize("how", ["restored", "gathered"])
def test_sharded_state_comes_back_bit_for_bit(made: list[dict[str, Any]], how: str) -> None:
    for process in made:
        assert process[f"fsdp2/{how}"] == process["fsdp2/cap"]
