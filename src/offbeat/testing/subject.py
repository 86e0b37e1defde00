"""A run under test: in processes of its own, seen through its log and directory, and hurt by signals.

Linux or another system with signals, and psutil (`pip install 'offbeat[test]'`). Knows no scheduler and no setting.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

import offbeat
from offbeat.report.audit import Audit, audit
from offbeat.report.read import read_run

Target = Literal["main", "rollout", "learner", "scorer"]
Moment = Literal["any", "checkpoint", "publish", "migration", "startup"]
PATIENCE = 120.0
"""Seconds until a run that should go on is given up."""
MOMENT_SECONDS = 8.0
"""Seconds a blow waits for its moment; then it falls anyway."""


def launch(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """`offbeat` with these arguments, its output piped."""
    return subprocess.Popen(
        [sys.executable, "-m", "offbeat.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment | {"PYTHONPATH": python_path(environment)},
    )


def workers_of(main: int, kind: str) -> list[psutil.Process]:
    """The worker processes of a kind of a main process: its children, or forked for it by a server of others."""
    found = []
    for process in psutil.process_iter(["ppid", "cmdline"]):
        words = " ".join(process.info["cmdline"] or ()).split()
        ours = process.info["ppid"] == main or words[3:] == ["of", "process", str(main)]
        if ours and words[1:2] == ["-m"] and words[2].endswith(f".{kind}_process"):
            found.append(process)
    return found


def python_path(environment: Mapping[str, str]) -> str:
    """What the environment asks for, then the very offbeat that is imported here."""
    asked = (environment.get("PYTHONPATH"), str(Path(offbeat.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    return os.pathsep.join(part for part in asked if part)


@dataclass
class Subject:
    """A run directory, the settings it begins with, and the process that runs it, if any."""

    directory: Path
    overrides: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    # -- running ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        sets = [part for override in self.overrides for part in ("--set", override)]
        self._start("train", "--out", str(self.directory), "--json", *sets)

    def resume(self) -> None:
        self._start("train", "--resume", str(self.directory), "--json")

    def _start(self, *arguments: str) -> None:
        self.process = launch(arguments, self.environment)

    def end(self, how: int = signal.SIGINT) -> tuple[int, str]:
        """Ask the main process to end; (exit code, what it said on standard error)."""
        assert self.process is not None
        self.process.send_signal(how)
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err

    def finish(self) -> dict[str, Any]:
        """Wait until the run has ended by itself; its summary."""
        assert self.process is not None
        out, err = self.process.communicate(timeout=2 * PATIENCE)
        assert self.process.returncode == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    # -- seeing ----------------------------------------------------------------------------------------------

    def query(self, statement: str, *values: object) -> Any:
        """The first value of the first row, read from the log of a run that may be writing; None without one."""
        file = self.directory / "run.sqlite"
        if not file.exists():
            return None
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as log:
            row = log.execute(statement, values).fetchone()
        return row[0] if row else None

    @property
    def version(self) -> int:
        """Iterations committed; -1 before there is a run."""
        count = self.query("SELECT count(*) FROM events WHERE kind = 'Trained'")
        return -1 if count is None else int(count)

    @property
    def rebuilt(self) -> int:
        """Versions that were made anew."""
        return int(self.query("SELECT count(*) FROM events WHERE kind = 'Rebuilt'") or 0)

    @property
    def seq(self) -> int:
        """The newest event; 0 before there is one."""
        return int(self.query("SELECT max(seq) FROM events") or 0)

    def workers(self, kind: str) -> list[psutil.Process]:
        """The worker processes of a kind that the main process has now."""
        assert self.process is not None
        return workers_of(self.process.pid, kind)

    def wait_for(self, what: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Until `what` holds. Raises AssertionError where the run ends before, or the time is over."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while not what():
            if self.process.poll() is not None:
                raise AssertionError(f"{self.directory}: ended too early: {self.process.communicate()}")
            assert time.monotonic() < deadline, f"{self.directory}: waited in vain"
            time.sleep(0.02)

    def audit(self) -> Audit:
        """Raises AssertionError where a promised law is broken."""
        found = audit(read_run(self.directory))
        assert found.ok, f"{self.directory}: {found.broken}, {found.evidence}"
        return found

    # -- hurting ---------------------------------------------------------------------------------------------

    def wait_for_moment(self, moment: Moment, rng: random.Random) -> bool:
        """Wait for a moment of the run; False where it did not come, so that the blow falls at any."""
        seen = self.version
        watched: dict[Moment, Callable[[], object]] = {
            "checkpoint": lambda: next((self.directory / "versions").glob(".*.writing"), None),
            "publish": lambda: self.version > seen,
            "migration": lambda: next((self.directory / "parcels").glob("*"), None),
        }
        if moment in watched:
            deadline = time.monotonic() + MOMENT_SECONDS
            while time.monotonic() < deadline:
                if watched[moment]():
                    return True
                time.sleep(0.001)
            return False
        time.sleep(rng.uniform(0.0, 1.0))
        return True

    def kill(self, target: Target, rng: random.Random) -> bool:
        """SIGKILL one process of a kind; False where there is none just now."""
        assert self.process is not None
        if target == "main":
            self.process.kill()
            self.process.communicate()
            return True
        found = self.workers(target)
        if not found:
            return False
        with suppress(psutil.NoSuchProcess):
            rng.choice(found).kill()
        return True

    @property
    def dead(self) -> bool:
        return self.process is None or self.process.poll() is not None
