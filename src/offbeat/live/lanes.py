"""Which process hosts which lane, and the parcels that travel between lanes.

Invariants: a lane that is started is new, whatever its process did before, and what it says names its life; what the
lanes of an ended process held is reported lost, lane by lane. A parcel lies in the run directory until its `Departed`
has been handled, then it is either claimed by the lane it was attached to or gone; what a lane has not read when it
ends is gone when it is started again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from offbeat import events as e
from offbeat.backends import messages as m
from offbeat.backends.backend import Backend
from offbeat.backends.local import Name
from offbeat.backends.parcels import parcel_file, sweep_parcels


class LaneDesk:
    def __init__(
        self, backend: Backend, directory: Path, per_process: int, settings: dict[str, Any], origin: float
    ) -> None:
        self._backend = backend
        self._directory = directory
        self._per_process = per_process
        self._hello = m.RolloutHello(str(directory), settings, origin)
        self._open: dict[Name, set[int]] = {}
        self._lives: dict[int, int] = {}
        self._unclaimed: set[tuple[int, int]] = set()
        self._claimed: dict[int, set[tuple[int, int]]] = {}
        sweep_parcels(directory)

    def start(self, lane: int) -> list[e.Event]:
        """Open a lane in its process. One that is open already is replaced with its process: its siblings are lost."""
        self._lives[lane] = self._lives.get(lane, 0) + 1
        name, lost = self._process(lane), list[e.Event]()
        if name not in self._backend.workers or lane in self._open.get(name, ()):
            self._open.get(name, set()).discard(lane)
            lost = self.lost(name, f"its process was replaced, for lane {lane} was", lane)
            self._backend.start(name, self._hello)
        self._open.setdefault(name, set()).add(lane)
        self._remove(self._claimed.pop(lane, set()))
        self.tell(m.OpenLane(lane))
        return lost

    def tell(self, message: Any) -> None:
        """Send a message to the process of the lane that it names."""
        self._backend.send(self._process(message.lane), message)

    def lost(self, name: Name, reason: str, for_lane: int | None = None, left: bool = False) -> list[e.Event]:
        """A process has ended: so have all its lanes."""
        gone = sorted(self._open.pop(name, ()))
        return [e.LaneLost(lane, reason, self._lives[lane], for_lane, left) for lane in gone]

    def heard(self, message: Any) -> e.Event:
        """What a lane that is open said, as an event of its present life: no process that was replaced is heard."""
        match message:
            case m.LaneUp():
                return e.LaneReady(message.lane, message.slots, self._lives[message.lane])
            case m.WeightsLoaded():
                return e.VersionLoaded(message.lane, message.version, self._lives[message.lane])
            case m.Beat():
                return e.Progress(**msgspec.structs.asdict(message), life=self._lives[message.lane])
            case m.SamplesGivenUp():
                return msgspec.convert(message, e.Departed, from_attributes=True)
            case m.SampleFailed():
                return e.GenerationFailed(message.trajectory_id, message.attempt, message.reason)
        raise AssertionError(f"no event for {type(message).__name__}")

    def offer(self, event: e.Departed) -> None:
        self._unclaimed = set(zip(event.trajectory_ids, event.attempts, strict=True))

    def claim(self, command: e.Attach) -> None:
        wanted = set(zip(command.trajectory_ids, command.attempts, strict=True))
        self._unclaimed -= wanted
        unread = {
            parcel for parcel in self._claimed.get(command.lane, ()) if parcel_file(self._directory, *parcel).exists()
        }
        self._claimed[command.lane] = unread | wanted

    def drop_unclaimed(self) -> None:
        """Nobody asked for these when their `Departed` was handled: what they hold was aborted meanwhile."""
        self._remove(self._unclaimed)
        self._unclaimed.clear()

    def _remove(self, parcels: set[tuple[int, int]]) -> None:
        for trajectory_id, attempt in parcels:
            parcel_file(self._directory, trajectory_id, attempt).unlink(missing_ok=True)

    def _process(self, lane: int) -> Name:
        return Name("rollout", lane // self._per_process)
