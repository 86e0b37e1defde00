"""The autopilot of a run: each iteration's report in, levers out, and an announcement for each that moves.

*Fold invariant*: levers follow from the `Trained` events alone, so a resumed run has the levers it had, and a batch
that is handed out again goes with the same. What moves when is decided in `offbeat.theory.autopilot`. Pure.
"""

from __future__ import annotations

import math

from offbeat.events import Steer, Trained
from offbeat.theory.autopilot import AutopilotSettings, Reading, advance, begin


class Steering:
    """The levers of a run; without settings they stay where they are."""

    def __init__(self, settings: AutopilotSettings | None) -> None:
        self._settings = settings
        self._state = begin(settings) if settings else None

    @property
    def projection(self) -> float:
        """Strength in [0, 1]."""
        return self._state.levers.strength if self._state else 0.0

    @property
    def rate(self) -> float:
        """What the learning rate is multiplied by."""
        return self._state.levers.rate if self._state else 1.0

    def bounded(self, staleness: int) -> int:
        """A bound, or the lower one that the autopilot holds."""
        return min(staleness, self._state.levers.staleness) if self._state else staleness

    def saw(self, event: Trained) -> list[Steer]:
        """Take up what an iteration showed; at most one lever moves.

        An iteration whose updates were all left out, since nothing in them was finite, says nothing of the policy.
        """
        report = event.report
        if self._settings is None or self._state is None or (report.skipped_updates and not report.gradient_norm):
            return []
        drift = report.instruments.drift_from_start if report.instruments else None
        cosine = report.alignment.cosine if report.alignment else None
        seen = Reading(math.sqrt(2.0 * max(0.0, report.policy_lag_kl)), cosine, drift)
        self._state, moved = advance(self._state, seen, self._settings)
        if moved is None:
            return []
        return [Steer(event.version, moved.lever, moved.before, moved.after, moved.pressure, moved.reason)]
