"""The Python of vLLM's environment: where it is, and whether it is one. Asked before anything is written or started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from offbeat.errors import SettingsError
from offbeat.settings_sections import RolloutSettings

VARIABLE = "OFFBEAT_VLLM_PYTHON"
SECONDS = 60.0
_ASK = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('vllm') else 3)"


def vllm_python(rollout: RolloutSettings) -> str:
    """The interpreter, absolute. Raises SettingsError where there is none, or one without vLLM."""
    named = os.environ.get(VARIABLE)
    key = f"{VARIABLE} = {named}" if named else f"rollout.vllm_python = {rollout.vllm_python}"
    remedy = "make vLLM's environment with `make vllm`, or name the Python of yours"
    path = Path(
        os.path.abspath(Path(named or rollout.vllm_python).expanduser())
    )  # links kept: one is what makes a venv
    if not os.access(path, os.X_OK) or path.is_dir():
        raise SettingsError(f"{key}: no Python there; {remedy}")
    try:
        found = subprocess.run([path, "-P", "-c", _ASK], capture_output=True, timeout=SECONDS, check=False).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"{key}: does not run ({error}); {remedy}") from None
    if found:
        raise SettingsError(f"{key}: a Python without vLLM; {remedy}")
    return str(path)


def interpreters(rollout: RolloutSettings) -> dict[str, str]:
    """The interpreters of workers that are not to run in this environment, by kind."""
    return {"rollout": vllm_python(rollout)} if rollout.engine == "vllm" else {}
