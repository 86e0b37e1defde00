"""Scoring: rewards asked one after the other of the scorer process, each with its own time limit.

A call that runs out of time costs the scorer its life and that one reward; what queued behind it is asked again
of the next scorer. Rollouts go before held-out answers. A failure is never a reward of 0. Where the scorer does not
come up `attempts` times in a row, scoring is `hopeless` and says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from offbeat.backends.backend import Backend
from offbeat.backends.local import Name
from offbeat.backends.messages import ScorerHello, ScoreThis
from offbeat.records import Prompt

SCORER = Name("scorer")
AHEAD = 16


class Asked(NamedTuple):
    key: Hashable
    prompt: Prompt
    response: str


class Verdict(NamedTuple):
    """`reward` is None when the call failed for `reason`."""

    key: Hashable
    reward: float | None
    reason: str


class Scoring:
    def __init__(self, backend: Backend, hello: ScorerHello, seconds: float, attempts: int) -> None:
        self._backend = backend
        self._hello = hello
        self._seconds = seconds
        self._urgent: deque[Asked] = deque()
        self._patient: deque[Asked] = deque()
        self._asked: dict[int, Asked] = {}
        self._ticket = 0
        self._up = False
        self._deadline: float | None = None
        self._attempts = attempts
        self._failed_starts = 0
        self.hopeless = ""
        """Why no scorer can be had; empty as long as one may come up."""

    def start(self) -> None:
        self._up = False
        self._deadline = None
        try:
            self._backend.start(SCORER, self._hello)
        except OSError as error:
            self.hopeless = f"the scorer cannot be started: {error.strerror or error}"

    def ask(self, key: Hashable, prompt: Prompt, response: str, urgent: bool = True) -> None:
        (self._urgent if urgent else self._patient).append(Asked(key, prompt, response))

    @property
    def deadline(self) -> float | None:
        """When the call under way runs out of time."""
        return self._deadline

    def excuse(self, seconds: float) -> None:
        """The last `seconds` count against no call."""
        if self._deadline is not None:
            self._deadline += seconds

    def up(self, now: float) -> None:
        self._up = True
        self._failed_starts = 0
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Keep a few calls with the scorer, so that it never waits for us."""
        while self._up and len(self._asked) < AHEAD and (self._urgent or self._patient):
            asked = (self._urgent or self._patient).popleft()
            self._ticket += 1
            self._asked[self._ticket] = asked
            self._backend.send(SCORER, ScoreThis(self._ticket, asked.prompt, asked.response))
        if self._asked and self._deadline is None:
            self._deadline = now + self._seconds

    def answered(self, ticket: int, reward: float | None, reason: str, now: float) -> Verdict | None:
        asked = self._asked.pop(ticket, None)
        self._deadline = None
        self.go_on(now)
        return Verdict(asked.key, reward, reason) if asked else None

    def out_of_time(self) -> Iterator[Verdict]:
        """The call under way took too long: end the scorer, fail that call, ask the others again."""
        return self._replace(f"ran out of time ({self._seconds:g} s)")

    def died(self, reason: str) -> Iterator[Verdict]:
        """The scorer died in the call under way, or before it could take one."""
        if not self._up:
            self._failed_starts += 1
            if self._failed_starts >= self._attempts:
                self.hopeless = f"the scorer did not come up {self._failed_starts} times in a row: {reason}"
        return self._replace(reason)

    def _replace(self, reason: str) -> Iterator[Verdict]:
        asked = [self._asked[ticket] for ticket in sorted(self._asked)]
        self._asked = {}
        if asked:
            yield Verdict(asked[0].key, None, reason)
            self._urgent.extendleft(reversed(asked[1:]))
        if not self.hopeless:
            self.start()
