"""Only one learner writes into a run directory at a time, wherever it runs.

*Sole-writer invariant*: a learner of an earlier session that has not ended yet (its machine was out of reach) keeps
the next one waiting before it reads anything; what it still publishes is not in the log and is written over.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offbeat.errors import WeightsError

LOCK_NAME = "learner.lock"
PATIENCE_SECONDS = 60.0


@contextmanager
def sole_writer(run_directory: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the learner's lock. Raises WeightsError where another learner does not let go of it."""
    handle = os.open(run_directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise WeightsError(
                        f"{run_directory}: another learner still writes there after {patience:.0f} s; end it"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)
