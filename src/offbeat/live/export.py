"""The policy of a finished run, as a Hugging Face directory in DIR/model.

*Model invariant*: DIR/model appears whole or not at all, and a finished run that has none is given it from the files of
its newest version, however often that failed before. This file does not know how a policy is written.
"""

from __future__ import annotations

import time
from pathlib import Path

from offbeat.backends.backend import Backend
from offbeat.backends.local import Died, Name
from offbeat.backends.messages import Exported, ExportTo, LearnerHello
from offbeat.errors import RunFailed

MODEL = "model"
LEARNER = Name("learner")


def has_model(run_directory: Path) -> bool:
    """Whether the run's model lies there, whole. The weights are what an export writes last."""
    return all((run_directory / MODEL / name).is_file() for name in ("config.json", "model.safetensors"))


def export_model(run_directory: Path, backend: Backend, hello: LearnerHello, seconds: float) -> None:
    """Write DIR/model by the run's learner, or by one started with `hello` where there is none.

    Raises RunFailed when the learner ends, or says nothing for `seconds`.
    """
    if LEARNER not in backend.workers:
        backend.start(LEARNER, hello)
    backend.send(LEARNER, ExportTo(str(run_directory / MODEL)))
    deadline = time.monotonic() + seconds
    reason = f"not done within {seconds:.0f} s"
    while True:
        late = time.monotonic() >= deadline
        for name, message in backend.poll(0.0 if late else 1.0):
            if isinstance(message, Exported):
                return
            if name == LEARNER and isinstance(message, Died):
                late, reason = True, message.reason
        if late:
            raise RunFailed(
                f"run {run_directory}: finished, but {MODEL}/ could not be written ({reason}); mend that, then have it"
                " written by --resume"
            )
