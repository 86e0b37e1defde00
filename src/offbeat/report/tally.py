"""What can be told of a run while it goes on: a fold over its events and commands, constant work for each.

*Blind*: everything is derived from events and commands, so replaying a log tells the same. Memory is bounded by
the groups under way. This file draws nothing; it takes the log at its word, `offbeat.report.audit` does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from offbeat import events as e
from offbeat.report.laws import promised
from offbeat.settings import Settings

WINDOW = 16


class Tally:
    """The state of a run, for people.

    `reward` and the rates are means over the newest 16 iterations; staleness is over all that was consumed.
    """

    def __init__(self, settings: Settings) -> None:
        self.goal = settings.learner.iterations
        bounded = "c3" in promised(settings.schedule.name)
        self.bound = settings.schedule.staleness_bound if bounded else None
        self.group_size = settings.schedule.group_size
        self.time_limit = settings.run.time_limit_seconds
        self.now = 0.0
        self.version = 0
        self.evaluated: e.Evaluated | None = None
        self.marked: e.Marked | None = None
        """How far the evaluation under way is with its marks."""
        self.restarts = self.quarantined = 0
        self.consumed = self.staleness_sum = self.staleness_max = 0
        self.last_words = ""
        self.levers: dict[str, float] = {}
        """Those that the autopilot holds back, as it last said."""
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)
        self._group_version: dict[int, int] = {}
        self._batch: e.Train | None = None
        self._slots: dict[int, int] = {}
        self._busy: dict[int, int] = {}
        self._loaded: dict[int, set[int]] = {}
        self._folds: dict[type, Callable[[Any], None]] = {
            e.Opened: self._opened,
            e.LaneReady: self._lane_ready,
            e.LaneLost: self._lane_lost,
            e.VersionLoaded: lambda event: self._loaded.setdefault(event.lane, set()).add(event.version),
            e.Progress: self._lane_progress,
            e.Marked: self._marking,
            e.Evaluated: self._evaluation,
            e.Trained: self._trained,
            e.LearnerLost: self._learner_lost,
            e.StartLane: lambda command: self._forget_lane(command.lane),
            e.UnloadVersion: lambda command: self._loaded.get(command.lane, set()).discard(command.version),
            e.Generate: self._generate,
            e.Train: self._train,
            e.Quarantine: self._quarantine,
            e.Evict: self._evict,
            e.Steer: self._steer,
            e.Stop: self._stop,
        }

    def take(self, event: e.Event, now: float, commands: Sequence[e.Command]) -> None:
        self.now = now
        fold = self._folds.get(type(event))
        if fold is not None:
            fold(event)
        for command in commands:
            fold = self._folds.get(type(command))
            if fold is not None:
                fold(command)

    # -- what is shown ---------------------------------------------------------------------------------------

    @property
    def reward(self) -> float | None:
        return sum(self._rewards) / len(self._rewards) if self._rewards else None

    @property
    def live_versions(self) -> list[int]:
        """Versions loaded in some lane."""
        return sorted(set().union(*self._loaded.values()))

    @property
    def slots(self) -> tuple[int, int]:
        """Busy slots as last heard, and slots there are."""
        return sum(self._busy.values()), sum(self._slots.values())

    @property
    def staleness_mean(self) -> float | None:
        return self.staleness_sum / self.consumed if self.consumed else None

    @property
    def trajectories_per_second(self) -> float | None:
        seconds = self._window_seconds
        return sum(n for _, n in list(self._steps)[1:]) / seconds if seconds else None

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the newest iterations, and not beyond the time limit."""
        seconds = self._window_seconds
        if not seconds:
            return None
        left = seconds / (len(self._steps) - 1) * (self.goal - self.version) - (self.now - self._steps[-1][0])
        if self.time_limit is not None:
            left = min(left, self.time_limit - self.now)
        return max(0.0, left)

    @property
    def _window_seconds(self) -> float:
        return self._steps[-1][0] - self._steps[0][0] if len(self._steps) > 1 else 0.0

    # -- events ----------------------------------------------------------------------------------------------

    def _opened(self, event: e.Opened) -> None:
        """No process of an earlier session runs, and the pace is measured anew."""
        self._slots.clear()
        self._busy.clear()
        self._loaded.clear()
        self._steps.clear()
        self.marked = None
        self.last_words = ""

    def _lane_ready(self, event: e.LaneReady) -> None:
        self._forget_lane(event.lane)
        self._slots[event.lane] = event.slots

    def _lane_lost(self, event: e.LaneLost) -> None:
        self._forget_lane(event.lane)
        self.last_words = f"lane {event.lane} was lost: {event.reason}"

    def _lane_progress(self, event: e.Progress) -> None:
        self._busy[event.lane] = event.busy_slots

    def _marking(self, event: e.Marked) -> None:
        self.marked = event

    def _evaluation(self, event: e.Evaluated) -> None:
        self.evaluated = event
        self.marked = None

    def _learner_lost(self, event: e.LearnerLost) -> None:
        self.last_words = f"the learner was lost: {event.reason}"

    def _trained(self, event: e.Trained) -> None:
        self.version = event.version
        self._rewards.append(event.report.reward_mean)
        batch, self._batch = self._batch, None
        if batch is None:
            return
        for group_id in batch.group_ids:
            staleness = batch.iteration - self._group_version.pop(group_id, batch.iteration)
            self.staleness_sum += staleness * self.group_size
            self.staleness_max = max(self.staleness_max, staleness)
        trajectories = len(batch.group_ids) * self.group_size
        self.consumed += trajectories
        self._steps.append((self.now, trajectories))

    # -- commands --------------------------------------------------------------------------------------------

    def _forget_lane(self, lane: int) -> None:
        for kept in (self._slots, self._busy, self._loaded):
            kept.pop(lane, None)

    def _generate(self, command: e.Generate) -> None:
        self._group_version.setdefault(command.group_id, command.version)
        self.restarts += sum(attempt > 0 for attempt in command.attempts)
        if not self._steps:
            self._steps.append((self.now, 0))

    def _train(self, command: e.Train) -> None:
        self._batch = command

    def _quarantine(self, command: e.Quarantine) -> None:
        self._group_version.pop(command.group_id, None)
        self.quarantined += 1
        self.last_words = f"prompt {command.group_id} was quarantined: {command.reason}"

    def _evict(self, command: e.Evict) -> None:
        self._group_version.pop(command.group_id, None)

    def _steer(self, command: e.Steer) -> None:
        self.levers[command.lever] = command.after
        self.last_words = f"autopilot: {command.reason}"

    def _stop(self, command: e.Stop) -> None:
        self.last_words = f"{command.outcome}: {command.reason}"


def clock(seconds: float) -> str:
    """Seconds as people read them: 45 s, 3:07, 2:03:09."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
