"""The numbers of a run for TensorBoard, written while it runs: an observer of the main loop.

    tensorboard --logdir RUN/tensorboard

*Derived, never doubled*: each session writes one new file with everything the run log holds so far and removes those of
earlier sessions, so every step is there exactly once, also after `kill -9` and a resume. The step is the version.
A disk that refuses ends the writing, not the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

from offbeat import events as e
from offbeat.records import Instruments, StepAlignment, StepReport
from offbeat.report.eventfile import EventFile

DIRECTORY = "tensorboard"

_REPORTED = {
    "reward/mean": "reward_mean",
    "reward/std": "reward_std",
    "reward/zero_advantage_groups": "zero_advantage_groups",
    "learner/loss": "loss",
    "learner/gradient_norm": "gradient_norm",
    "learner/learning_rate": "learning_rate",
    "learner/skipped_updates": "skipped_updates",
    "learner/train_seconds": "train_seconds",
    "learner/publish_seconds": "publish_seconds",
    "policy/entropy": "entropy",
    "policy/ratio_mean": "ratio_mean",
    "policy/ratio_max": "ratio_max",
    "policy/clip_share": "clip_share",
    "policy/lag_kl": "policy_lag_kl",
}
_MEASURED = {
    "stability/staleness_mean": "staleness_mean",
    "stability/effective_sample_size": "effective_sample_size",
    "stability/rate_scale": "rate_scale",
    "stability/g_upd": "g_upd",
    "stability/iteration_drift": "iteration_drift",
    "stability/drift_from_start": "drift_from_start",
    "stability/cycle_drift": "cycle_drift",
    "stability/drift_exponent": "drift_exponent",
}
_ALIGNMENT = ("cosine", "controlled", "update", "kept", "invalid", "projected", "skipped", "released")
_BY_STALENESS = {
    "clip_share": "clip_share_by_staleness",
    "lag_kl": "lag_kl_by_staleness",
    "drift": "drift_by_staleness",
}


def step_scalars(report: StepReport) -> dict[str, float]:
    """Every number of a step report by its tag; what was not measured is left out."""
    found: dict[str, float | None] = {tag: getattr(report, name) for tag, name in _REPORTED.items()}
    if report.instruments is not None:
        found |= _instrument_scalars(report.instruments)
    if report.alignment is not None:
        found |= _alignment_scalars(report.alignment)
    return {tag: float(value) for tag, value in found.items() if value is not None}


def _instrument_scalars(instruments: Instruments) -> dict[str, float | None]:
    found: dict[str, float | None] = {tag: getattr(instruments, name) for tag, name in _MEASURED.items()}
    for what, name in _BY_STALENESS.items():
        for staleness, value in enumerate(getattr(instruments, name)):
            found[f"stability/{what}_at_staleness/{staleness}"] = value
    return found


def _alignment_scalars(alignment: StepAlignment) -> dict[str, float | None]:
    found: dict[str, float | None] = {f"alignment/{name}": getattr(alignment, name) for name in _ALIGNMENT}
    return found | {f"alignment/cosine_at_lag/{lag}": cosine for lag, cosine in alignment.lags.items()}


def event_scalars(event: e.Event) -> tuple[int, dict[str, float]]:
    """The step of an event and its numbers by tag; none where it has none to tell."""
    if isinstance(event, e.Trained):
        return event.version, step_scalars(event.report)
    if isinstance(event, e.Evaluated):
        held_out = {"greedy": event.exact_match_greedy, "sampled": event.exact_match_sampled}
        return event.version, {f"held_out/{how}": value for how, value in held_out.items()}
    return 0, {}


class TensorBoard:
    """`saw` is the observer; `recorded` are (event, run time in seconds) of the log so far. Close it at the end."""

    def __init__(
        self,
        run_directory: Path,
        created: str,
        recorded: Iterable[tuple[e.Event, float]],
        complain: Callable[[str], None],
    ) -> None:
        """`created` is the run's birth in ISO format: wall times are run time since then, without the pauses."""
        self._directory = run_directory / DIRECTORY
        self._origin = datetime.fromisoformat(created).timestamp()
        self._complain = complain
        self._file: EventFile | None = None
        self._guarded(self._begin)
        for event, now in recorded:
            self.saw(event, now, ())

    def saw(self, event: e.Event, now: float, _commands: Sequence[e.Command]) -> None:
        """Observe one event of the main loop; `now` is run time in seconds."""
        if self._file is None:
            return
        step, scalars = event_scalars(event)
        if scalars:
            self._put(step, now, scalars)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self._directory.mkdir(exist_ok=True)
        older = sorted(self._directory.glob("events.out.tfevents.*"))
        number = 1 + max((int(file.suffix[1:]) for file in older if file.suffix[1:].isdigit()), default=-1)
        self._file = EventFile(self._directory / f"events.out.tfevents.{number:010d}", self._origin)
        for file in older:
            file.unlink()

    def _put(self, step: int, now: float, values: dict[str, float]) -> None:
        file = self._file
        assert file is not None
        finite = {tag: value for tag, value in values.items() if math.isfinite(value)}
        self._guarded(lambda: file.scalars(step, self._origin + now, finite))

    def _guarded(self, deed: Callable[[], None]) -> None:
        try:
            deed()
        except OSError as error:
            self._complain(f"{self._directory}: cannot be written ({error.strerror or error}); the run goes on without")
            self.close()
