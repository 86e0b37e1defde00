"""Which version a session is pinned to, and which versions a server must hold because of that.

Laws: a session is answered by one version or refused (C1 over many calls); a version that a pin or a call needs is
never let go; a pin without calls ends with its lease, so that nobody holds a version for ever; never more than
`most_versions` are held or on their way. Knows no engine, no clock and no client: time comes with each call.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, NamedTuple

from offbeat.errors import OffbeatError

Refusal = Literal["not-ready", "unknown-version", "no-room", "other-version", "session-over", "too-many-sessions"]


class PinError(OffbeatError):
    """A call cannot be given a version; `refusal` says which rule refuses it."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        self.refusal = refusal
        super().__init__(message)


class Load(NamedTuple):
    """Take up a version; `ready` or `failed` is the answer."""

    version: int


class Unload(NamedTuple):
    """Nobody needs this version any more."""

    version: int


@dataclass(slots=True)
class Pin:
    """A session: its version, its calls under way, and when its lease ends while it has none."""

    version: int
    calls: int
    lease: float


class Pins:
    """`published` are versions that can be had, `held` those the engine has, `loading` those on their way."""

    def __init__(
        self, lease_seconds: float, most_versions: int, most_sessions: int, keep: int = 1, remembered: int = 1 << 18
    ) -> None:
        """`keep` newest versions are held without any pin. A session that is over is remembered, so that it cannot
        begin anew under another version, until `remembered` others have ended after it."""
        assert 1 <= keep <= most_versions
        self._lease_seconds = lease_seconds
        self._most_versions = most_versions
        self._most_sessions = most_sessions
        self._keep = keep
        self._remembered = remembered
        self.published: set[int] = set()
        self.held: set[int] = set()
        self.loading: set[int] = set()
        self.sessions: dict[str, Pin] = {}
        self.expired = 0
        """Pins that ended by their lease, so far."""
        self._over: OrderedDict[str, int] = OrderedDict()
        self._calls: dict[int, int] = {}
        self._asked: dict[int, float] = {}

    # -- versions ----------------------------------------------------------------------------------------------

    def publish(self, version: int) -> None:
        """A version can be had from now on."""
        self.published.add(version)

    def withdraw(self, version: int) -> None:
        """A version cannot be had any more; where it is held, it goes on being held as long as it is needed."""
        self.published.discard(version)
        self._asked.pop(version, None)

    def ready(self, version: int) -> None:
        """The engine holds it."""
        self.loading.discard(version)
        self.held.add(version)

    def failed(self, version: int) -> None:
        """The engine could not take it up: it is not asked for again."""
        self.loading.discard(version)
        self.held.discard(version)
        self.withdraw(version)

    @property
    def newest(self) -> int | None:
        """The version that a new session gets: the newest of those held."""
        return max(self.held, default=None)

    def needed(self, version: int) -> bool:
        """Whether a pin, a call under way or somebody who asked for it needs the version."""
        return (
            self._calls.get(version, 0) > 0
            or version in self._asked
            or any(pin.version == version for pin in self.sessions.values())
        )

    def ask(self, version: int, now: float) -> bool:
        """Have an older published version held for a lease, whether or not anybody calls; whether it is held already.

        Raises PinError for a version that cannot be had, and where there is no room for it."""
        if version not in self.published | self.held:
            raise PinError("unknown-version", f"version {version} is not there")
        if version not in self.held | self.loading and not self._room():
            raise PinError(
                "no-room",
                f"version {version} cannot be taken up: all {self._most_versions} that may be held are in use",
            )
        self._asked[version] = now + self._lease_seconds
        return version in self.held

    def decide(self, now: float) -> list[Load | Unload]:
        """End what has run out; then which versions to let go and which to take up."""
        self._expire(now)
        wanted = [version for version in self._asked if version not in self.held | self.loading]
        newest = max(self.published, default=None)
        if newest is not None and newest > max(self.held | self.loading, default=-1):
            wanted = [newest, *(version for version in wanted if version != newest)]
        commands: list[Load | Unload] = []
        spare = sorted(version for version in self.held if not self.needed(version))
        kept = set(sorted(self.held)[-self._keep :])
        for version in spare:
            crowded = len(self.held) + len(self.loading) + len(wanted) > self._most_versions
            if version != self.newest and (version not in kept or crowded):
                self.held.discard(version)
                commands.append(Unload(version))
        for version in wanted:
            if len(self.held) + len(self.loading) >= self._most_versions and not self._replace_newest(commands):
                break
            self.loading.add(version)
            commands.append(Load(version))
        return commands

    def _replace_newest(self, commands: list[Load | Unload]) -> bool:
        """Where one version at a time may be held, the newest makes way for the next as soon as nobody needs it."""
        newest = self.newest
        if self._most_versions > 1 or newest is None or self.needed(newest):
            return False
        self.held.discard(newest)
        commands.append(Unload(newest))
        return True

    def _room(self) -> bool:
        needed = sum(self.needed(version) or version == self.newest for version in self.held)
        return needed + len(self.loading) < self._most_versions

    def _expire(self, now: float) -> None:
        for session in [name for name, pin in self.sessions.items() if not pin.calls and pin.lease <= now]:
            self._end(session)
            self.expired += 1
        for version in [version for version, lease in self._asked.items() if lease <= now]:
            del self._asked[version]

    # -- calls -------------------------------------------------------------------------------------------------

    def begin(self, session: str | None, version: int | None, now: float) -> int:
        """The version that answers a call of `session` (None: a call by itself) that asks for `version` (None: no
        matter which). Every call that began is to `end`. Raises PinError.
        """
        pin = self.sessions.get(session) if session is not None else None
        chosen = self._choose(session, pin, version)
        if session is not None:
            if pin is None:
                if len(self.sessions) >= self._most_sessions:
                    raise PinError("too-many-sessions", f"{self._most_sessions} sessions are open, no more may be")
                pin = self.sessions[session] = Pin(chosen, 0, now)
                self._over.pop(session, None)
            pin.calls += 1
        self._calls[chosen] = self._calls.get(chosen, 0) + 1
        return chosen

    def _choose(self, session: str | None, pin: Pin | None, version: int | None) -> int:
        bound = pin.version if pin is not None else self._over.get(session) if session is not None else None
        if bound is not None and version is not None and version != bound:
            raise PinError(
                "other-version", f"session {session!r} is pinned to version {bound}, the call asks for {version}"
            )
        if pin is not None:
            return pin.version
        if bound is not None and bound not in self.held:
            raise PinError(
                "session-over",
                f"session {session!r} is over: its lease ended or it was closed, and its version {bound} is gone;"
                " begin another session",
            )
        chosen = bound if bound is not None else self.newest if version is None else version
        if chosen is None:
            raise PinError("not-ready", "no version is ready yet")
        if chosen not in self.held:
            raise PinError("unknown-version", f"version {chosen} is not held")
        return chosen

    def end(self, session: str | None, version: int, now: float) -> None:
        """A call that began is over, however it ended."""
        left = self._calls[version] - 1
        if left:
            self._calls[version] = left
        else:
            del self._calls[version]
        pin = self.sessions.get(session) if session is not None else None
        if pin is not None and pin.version == version and pin.calls:
            pin.calls -= 1
            pin.lease = now + self._lease_seconds

    def close(self, session: str) -> bool:
        """End a session; calls of it that are under way go on to their end. Whether there was one."""
        if session not in self.sessions:
            return False
        self._end(session)
        return True

    def _end(self, session: str) -> None:
        self._over[session] = self.sessions.pop(session).version
        while len(self._over) > self._remembered:
            self._over.popitem(last=False)
