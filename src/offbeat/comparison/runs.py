"""Makes the runs of a comparison, one process after the other, and keeps what is finished.

*One at a time rule*: no two runs share the machine, and none outlives its comparison: whatever ends this process ends
the run it waits for, and until that run is gone its directory is held. A comparison that was interrupted goes on in
the same directory: finished runs with the same settings are used as they are, an unfinished one is made anew (a resume
would count start-up and repeated work as speed). Knows processes and directories, no figures.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from offbeat.comparison.contestants import Contestant
from offbeat.errors import RunDirectoryError, RunFailed
from offbeat.locks import hold
from offbeat.report.read import Run, read_run
from offbeat.report.story import tell

LOG_NAME = "comparison.log"


def _end_with_parent() -> None:
    """In the new process: ask to be terminated, gently, when the comparison ends in whatever way (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Ours(NamedTuple):
    """What a comparison gives its runs: the lock of its directory (`hold`), additions to their environment."""

    lock: int
    environment: Mapping[str, str]


def make_run(
    directory: Path, config: Path | None, contestant: Contestant, ours: Ours, say: Callable[[str], None]
) -> Run:
    """Make the run of a contestant, or find it finished; its log.

    Raises RunDirectoryError where a run with other settings lies there or somebody uses it, RunFailed with its last
    words where it fails.
    """
    place = directory / contestant.name
    if place.exists():
        found = read_run(place)
        if found.settings != contestant.settings:
            raise RunDirectoryError(f"{place}: holds a run with other settings; give another --out or remove it")
        if tell(found).outcome == "finished":
            say(f"{contestant.name}: made earlier, used as it is")
            return found
        os.close(hold(place / "lock", str(place)))
        shutil.rmtree(place)
    say(contestant.name)
    arguments = [*([str(config)] if config else []), "--out", str(place)]
    arguments += [part for override in contestant.overrides for part in ("--set", override)]
    with (directory / LOG_NAME).open("a", encoding="utf-8") as log:
        log.write(f"== {contestant.name}\n")
        log.flush()
        command = [sys.executable, "-m", "offbeat.cli", "train", *arguments, "--json"]
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **ours.environment},
            pass_fds=(ours.lock,), preexec_fn=_end_with_parent,
        ).returncode  # fmt: skip
    if code:
        words = (directory / LOG_NAME).read_text(encoding="utf-8").strip().splitlines()[-1]
        raise RunFailed(f"{contestant.name}: {words}; see {directory / LOG_NAME}, then give the command again")
    return read_run(place)


def check_same_start(runs: dict[Contestant, Run]) -> None:
    """All runs of a repeat must begin with the same weights. Raises RunFailed naming two that do not."""
    first: dict[int, tuple[str, str]] = {}
    for contestant, run in runs.items():
        digest = run.meta.get("digest_0", "")
        name, expected = first.setdefault(contestant.repeat, (contestant.name, digest))
        if digest != expected:
            raise RunFailed(f"{contestant.name} and {name} began with different weights; remove both and compare again")
