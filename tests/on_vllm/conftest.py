"""Where vLLM's environment is, for tests that start runs on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.conftest import Trial

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def vllm_python() -> str:
    for named in (os.environ.get("OFFBEAT_VLLM_PYTHON"), ROOT / ".venv-vllm/bin/python"):
        if named and os.access(named, os.X_OK):
            return str(named)
    pytest.skip("vLLM's environment is not there; `make vllm test-vllm` makes it and runs these")


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the other whole runs have it, with heads of 32 features: vLLM's CPU kernels take no smaller ones."""
    from offbeat.models.presets import Preset, build_model, write_policy

    directory = tmp_path_factory.mktemp("policy")
    write_policy(build_model(Preset(width=64, hidden=64, layers=1, heads=2, kv_heads=1), seed=0), directory)
    return directory


@pytest.fixture
def trial(tmp_path: Path, policy: Path, vllm_python: str) -> Trial:
    return Trial(tmp_path / "run", policy, {"OFFBEAT_VLLM_PYTHON": vllm_python})
