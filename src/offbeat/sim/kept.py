"""Results that are there already: a simulation is a function of its cluster, schedule and offbeat's version.

*Resume*: what a file of JSON lines holds is not simulated again, so a sweep that was interrupted goes on where it was.
A line that was cut off is passed over. This file knows no simulator.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offbeat import __version__
from offbeat.errors import SettingsError
from offbeat.sim.cluster import Cluster


class Kept:
    """Results by what they are results of. Without a file nothing is kept. Raises SettingsError for an unusable one."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._cut = False
        """Does the file end in the middle of a line?"""
        self._found: dict[str, dict[str, Any]] = {}
        if file is None:
            return
        try:
            with file.open("ab+") as opened:
                opened.seek(0)
                text = opened.read()
        except OSError as error:
            raise SettingsError(f"{file}: cannot be written ({error.strerror}); keep results in another file") from None
        self._cut = bool(text) and not text.endswith(b"\n")
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = json.loads(line)
                self._found[row["of"]] = dict(row["result"])
            except (ValueError, KeyError, TypeError):
                if line.strip() and line[:6] != b'{"of":'[: len(line)]:
                    raise SettingsError(
                        f"{file}: line {number} is no result of a simulation; keep results in another file"
                    ) from None

    def result(self, cluster: Cluster, schedule: str, simulate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result that is kept, else that of `simulate`, which is kept from now on."""
        of = _digest(cluster, schedule)
        if of not in self._found:
            found = self._found[of] = simulate()
            if self.file is not None:
                with self.file.open("a", encoding="utf-8") as opened:
                    row = json.dumps({"of": of, "schedule": schedule, "result": found})
                    opened.write(("\n" if self._cut else "") + row + "\n")
                self._cut = False
        return self._found[of]


def _digest(cluster: Cluster, schedule: str) -> str:
    lengths = cluster.lengths.file
    data = lengths.read_bytes().hex() if lengths is not None and lengths.is_file() else ""
    what = [__version__, schedule, cluster.model_dump(mode="json"), data]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
