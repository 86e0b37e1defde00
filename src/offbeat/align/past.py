"""What a step is compared with: the reference, the ring of raw gradients for lags, the latest parameter update.

*Hole invariant*: a step without a valid gradient leaves a hole: nothing before it stands for it, and no cosine is made
across it. Knows no rule, no optimizer and no process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from offbeat.align.memory import Memory, Remembered, written
from offbeat.align.rule import AlignSettings


class Past:
    """`reference` is what the next gradient is compared with, None where there is nothing valid."""

    def __init__(self, settings: AlignSettings) -> None:
        self._settings = settings
        self._lags = settings.lags
        self.reference: Remembered | None = None
        self.ring: deque[Remembered | None] = deque(maxlen=max(settings.lags, default=0))
        """The raw gradient of the step before, the one before that, and so on."""
        self.update: Remembered | None = None

    def vectors(self) -> list[Remembered]:
        """All gradients a step is compared with, each once, the reference first."""
        looked_at = [self.reference, *(self.at(lag) for lag in self._lags)]
        return list({id(entry): entry for entry in looked_at if entry is not None}.values())

    def at(self, lag: int) -> Remembered | None:
        """The raw gradient so many steps back."""
        return self.ring[lag - 1] if lag <= len(self.ring) else None

    def miss(self) -> None:
        """A step without a valid gradient."""
        self.reference = self.update = None
        if self._lags:
            self.ring.appendleft(None)

    def places(self, skipped: bool) -> tuple[Remembered | None, Remembered | None]:
        """Where to put a gradient before and after control: the memory of what it replaces, or new."""
        keep = self._keeps(skipped)
        raw = self._settings.reference == "raw"
        replaced = Remembered() if self.reference is None else self.reference
        if not self._lags:
            return (replaced if raw and not keep else None), (None if raw or keep else replaced)
        oldest = self.ring[-1] if len(self.ring) == self.ring.maxlen else None
        needed = keep and oldest is self.reference
        return (Remembered() if oldest is None or needed else oldest), (None if raw or keep else replaced)

    def remember(self, raw: Remembered | None, applied: Remembered | None, skipped: bool) -> None:
        """`raw` and `applied` are the places, now filled."""
        if self._lags:
            self.ring.appendleft(raw)
        if not self._keeps(skipped):
            self.reference = raw if self._settings.reference == "raw" else applied

    def _keeps(self, skipped: bool) -> bool:
        return skipped and self._settings.on_skip == "keep"

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, Any]:
        """Every vector once; `reference` and `ring` name them by place, -1 is a hole. Shares memory with this."""
        entries = (entry for entry in (self.reference, *self.ring) if entry is not None)
        distinct = list({id(entry): entry for entry in entries}.values())
        places = {id(entry): index for index, entry in enumerate(distinct)}
        return {
            "gradients": [written(entry, parameters) for entry in distinct],
            "reference": places.get(id(self.reference), -1),
            "ring": [places.get(id(entry), -1) for entry in self.ring],
            "update": written(self.update, parameters) if self.update is not None else None,
        }

    @classmethod
    def restored(
        cls, settings: AlignSettings, state: Mapping[str, Any], memory: Memory, parameters: Sequence[Tensor]
    ) -> Past:
        """What `state_dict` was made of. Raises ValueError where it belongs to other parameters."""
        past = cls(settings)
        entries = dict(enumerate(memory.read(stored, parameters) for stored in state["gradients"]))
        past.reference = entries.get(state["reference"])
        past.ring.extend(entries.get(place) for place in state["ring"][: past.ring.maxlen])
        if state["update"] is not None:
            past.update = memory.read(state["update"], parameters)
        return past
