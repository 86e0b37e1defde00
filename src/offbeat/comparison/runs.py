"""Makes the runs of a comparison, one process after the other, and keeps what is finished.

*One at a time rule*: no two runs share the machine. A comparison that was interrupted goes on in the same directory:
finished runs with the same settings are measured, not made again. Knows processes and directories, no figures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from offbeat.comparison.contestants import Contestant
from offbeat.errors import OffbeatError, RunDirectoryError
from offbeat.report.read import Run, read_run
from offbeat.report.story import tell

LOG_NAME = "comparison.log"


class RunFailed(OffbeatError):
    """A run of the comparison did not finish."""


def make_run(directory: Path, config: Path | None, contestant: Contestant) -> Run:
    """Make the run of a contestant, go on with it, or find it finished; its log.

    Raises RunDirectoryError where a run with other settings lies there, RunFailed with its last words where it fails.
    """
    place = directory / contestant.name
    if place.exists():
        found = read_run(place)
        if found.settings != contestant.settings:
            raise RunDirectoryError(f"{place}: holds a run with other settings; give another --out or remove it")
        if tell(found).outcome == "finished":
            return found
        arguments = ["--resume", str(place)]
    else:
        arguments = [*([str(config)] if config else []), "--out", str(place)]
        arguments += [part for override in contestant.overrides for part in ("--set", override)]
    with (directory / LOG_NAME).open("a", encoding="utf-8") as log:
        log.write(f"== {contestant.name}\n")
        log.flush()
        command = [sys.executable, "-m", "offbeat.cli", "train", *arguments, "--json"]
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
    if code:
        words = (directory / LOG_NAME).read_text(encoding="utf-8").strip().splitlines()[-1]
        raise RunFailed(f"{contestant.name}: {words}; see {directory / LOG_NAME}, then give the command again")
    return read_run(place)
