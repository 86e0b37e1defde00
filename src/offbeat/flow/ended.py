"""Which of the numbers 0, 1, 2, ... have ended, in room for those that have not.

*Same-as-a-set law*: it answers as a plain set of all that ended would. Everything below `below` has ended; `beyond` are
those above it that have, while something older still lives: as many as end during the life of the oldest, however
long a run is.
"""

from __future__ import annotations

from offbeat.errors import InvariantError


class Ended:
    def __init__(self) -> None:
        self.below = 0
        self.beyond: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return 0 <= number < self.below or number in self.beyond

    def __len__(self) -> int:
        return self.below + len(self.beyond)

    def add(self, number: int) -> None:
        """Raises InvariantError for one that has ended before, or is negative."""
        if number in self or number < 0:
            raise InvariantError(f"{number} cannot end: it has before, or never was")
        self.beyond.add(number)
        while self.below in self.beyond:
            self.beyond.remove(self.below)
            self.below += 1
