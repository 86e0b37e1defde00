"""Whether a task draws the same prompts in another process, as resuming and scoring in worker processes require.

Foreign datasets may lean on the order of a set, which Python changes from process to process unless PYTHONHASHSEED
is fixed. The other process is `python -m offbeat.tasks`. This file does not know how tasks are made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256

import msgspec

from offbeat.errors import TaskError
from offbeat.ports import Task
from offbeat.records import Prompt
from offbeat.settings import TaskSettings

SECONDS = 300


def sample_of(task: Task, count: int) -> list[Prompt]:
    """The first `count` training prompts and one held-out prompt."""
    return [*map(task.prompt, range(count)), *task.held_out(1)]


def fingerprint(prompts: list[Prompt]) -> str:
    """The SHA-256 of prompts as JSON."""
    return sha256(msgspec.json.encode(prompts)).hexdigest()


def check_reproducible(prompts: list[Prompt], settings: TaskSettings, seed: int, count: int) -> None:
    """Raise TaskError unless a fresh process draws these prompts as its `sample_of(task, count)`, too."""
    asked = msgspec.json.encode({"task": settings.model_dump(), "seed": seed, "count": count})
    command = [sys.executable, "-m", "offbeat.tasks"]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, check=True, timeout=SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        last = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise TaskError(
            f"task {settings.name}: cannot be made in another process ({' '.join(last) or error})"
        ) from None
    if done.stdout.decode().split()[-1:] != [fingerprint(prompts)]:
        remedy = "choose another dataset"
        if not os.environ.get("PYTHONHASHSEED", "").isdigit():
            remedy = "set PYTHONHASHSEED=0 in the environment, or " + remedy
        raise TaskError(f"task {settings.name}: its prompts differ from process to process; {remedy}")
