"""A witness of a run: sees events and commands only, and knows afterwards whether C1, C2 and C3 were kept.

It shares no code and no state with scheduler or ledger. Breaches are sentences, so that a failing seed explains itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from offbeat import events as e


class Witness:
    """Feed it to `loop.run` as an observer; `breaches` afterwards. `bound` None: no C3; `splices`: no C1."""

    def __init__(self, group_size: int, bound: int | None, splices: bool) -> None:
        self.size = group_size
        self.bound = bound
        self.splices = splices
        self.breaches: list[str] = []
        self.losses = 0
        self._sent: dict[tuple[int, int], tuple[int, int]] = {}
        self._versions: dict[int, set[int]] = {}
        self._ended: dict[tuple[int, int], int] = {}
        self._scored: set[tuple[int, int]] = set()
        self._gone: Counter[int] = Counter()
        self._training: e.Train | None = None
        self._loaded: dict[int, set[int]] = {}

    def saw(self, event: e.Event, now: float, commands: Sequence[e.Command]) -> None:
        match event:
            case e.VersionLoaded():
                self._loaded.setdefault(event.lane, set()).add(event.version)
            case e.LaneLost():
                self.losses += 1
                self._loaded[event.lane] = set()
            case e.LearnerLost():
                self.losses += 1
            case e.Finished():
                self._finished(event)
            case e.Scored():
                self._scored.add((event.trajectory_id, event.attempt))
            case e.Trained():
                self._trained(event)
            case _:
                pass
        for command in commands:
            self._told(command)

    def _told(self, command: e.Command) -> None:
        match command:
            case e.Generate():
                if command.version not in self._loaded.get(command.lane, ()):
                    self.breaches.append(f"C1: lane {command.lane} was sent version {command.version}, which it lacks")
                self._versions.setdefault(command.group_id, set()).add(command.version)
                for key in zip(command.trajectory_ids, command.attempts, strict=True):
                    if key in self._sent:
                        self.breaches.append(f"C2: attempt {key} was sent twice")
                    self._sent[key] = command.version, command.lane
            case e.UnloadVersion():
                self._loaded.get(command.lane, set()).discard(command.version)
            case e.Train():
                self._training = command
            case e.Quarantine() | e.Evict():
                self._gone[command.group_id] += 1
            case _:
                pass

    def _finished(self, event: e.Finished) -> None:
        key = event.trajectory_id, event.attempt
        if key not in self._sent:
            self.breaches.append(f"C2: {key} ended but was never sent")
            return
        version, _ = self._sent[key]
        if not self.splices and (event.version, event.spans) != (version, 1):
            self.breaches.append(f"C1: {key} was sent under {version}, sampled by {event.version} in {event.spans}")
        self._ended[key] = event.version

    def _trained(self, event: e.Trained) -> None:
        batch = self._training
        if batch is None or batch.iteration != event.version - 1:
            self.breaches.append(f"C2: version {event.version} came of no batch")
            return
        for group, attempts in zip(batch.group_ids, batch.attempts, strict=True):
            self._gone[group] += 1
            keys = [(group * self.size + i, attempt) for i, attempt in enumerate(attempts)]
            if any(key not in self._ended or key not in self._scored for key in keys):
                self.breaches.append(f"C2: group {group} was trained on before it had ended")
                continue
            versions = {self._ended[key] for key in keys}
            if not self.splices and len(versions | self._versions[group]) > 1:
                self.breaches.append(f"C1: group {group} is of versions {sorted(versions | self._versions[group])}")
            if self.bound is not None and batch.iteration - min(versions) > self.bound:
                self.breaches.append(f"C3: group {group} was {batch.iteration - min(versions)} versions old")

    def closing(self) -> list[str]:
        """All breaches, those that show only at the end of a finished run included."""
        twice = [group for group, times in self._gone.items() if times > 1]
        lost = sorted(self._versions.keys() - self._gone.keys())
        found = list(self.breaches)
        found += [f"C2: group {group} left the run {self._gone[group]} times" for group in twice]
        found += [f"C2: group {group} was issued and never left the run" for group in lost]
        return found
