"""The record of a server: every call, version and lost engine, one JSON object a line.

The record is evidence: `versions` are those that sampled a call's tokens, as the engine says, whatever the call was
meant to get. One server at a time writes a file: it holds its lock (`locks`). A disk that refuses ends the record, not
the server.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from offbeat.errors import SettingsError
from offbeat.locks import hold
from offbeat.serve.calls import Notice


class CallRecord:
    """Writes every notice to a file as it comes; times are seconds since the epoch. Raises SettingsError for a file
    that cannot be written, RunDirectoryError for one that another server writes."""

    def __init__(self, file: Path, complain: Callable[[str], None]) -> None:
        self._file = file
        self._complain = complain
        self._lock: int | None = None
        try:
            self._stream: TextIO | None = file.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise SettingsError(f"--record {file}: cannot be written ({error.strerror}); choose another file") from None
        if stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode):  # a pipe or /dev/null may be anybody's
            with ExitStack() as undo:
                undo.callback(self._stream.close)
                self._lock = hold(file, f"--record {file}")
                undo.pop_all()

    def saw(self, notice: Notice) -> None:
        if self._stream is None:
            return
        row = {"event": type(notice).__name__, "at": round(time.time(), 6), **notice._asdict()}
        try:
            self._stream.write(json.dumps(row) + "\n")
        except OSError as error:
            self._complain(f"{self._file}: cannot be written ({error.strerror}); the server goes on without it")
            self._stream = None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
