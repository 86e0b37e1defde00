"""Sessions pinned to versions, under random calls, publishes, lapses of time and failures."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from offbeat.flow.pins import Load, PinError, Pins, Unload

LEASE = 10.0
NAMES = st.sampled_from("abcdef")


class PinMachine(RuleBasedStateMachine):
    """`calls` are those under way; `told` every version that a session was ever answered by."""

    @initialize(most=st.integers(1, 4), keep=st.integers(1, 2), sessions=st.integers(1, 4))
    def begin(self, most: int, keep: int, sessions: int) -> None:
        self.most, self.sessions, self.keep = most, sessions, min(keep, most)
        self.pins = Pins(LEASE, most, sessions, self.keep)
        self.now = 0.0
        self.published = -1
        self.engine: set[int] = set()
        self.calls: list[tuple[str | None, int]] = []
        self.told: dict[str, set[int]] = {}
        self.last_call: dict[str, float] = {}

    @rule()
    def publish(self) -> None:
        self.published += 1
        self.pins.publish(self.published)
        self.decide()

    @rule(seconds=st.floats(0, 2 * LEASE))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.decide()

    def decide(self) -> None:
        for command in self.pins.decide(self.now):
            if isinstance(command, Load):
                assert command.version not in self.engine, "a version is loaded twice"
                self.engine.add(command.version)
            else:
                assert isinstance(command, Unload)
                assert command.version in self.engine, "what was never loaded is unloaded"
                self.engine.remove(command.version)

    @rule(data=st.data(), well=st.booleans())
    def loaded(self, data: st.DataObject, well: bool) -> None:
        if self.pins.loading:
            version = data.draw(st.sampled_from(sorted(self.pins.loading)))
            if well:
                self.pins.ready(version)
            else:
                self.pins.failed(version)
                self.engine.remove(version)
            self.decide()

    @rule(session=st.none() | NAMES, version=st.none() | st.integers(0, 3))
    def call(self, session: str | None, version: int | None) -> None:
        try:
            given = self.pins.begin(session, version, self.now)
        except PinError:
            return
        assert version in (None, given), "another version than was asked for"
        if session is not None:
            self.told.setdefault(session, set()).add(given)
        self.calls.append((session, given))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.calls:
            session, version = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
            self.pins.end(session, version, self.now)
            if session is not None:
                self.last_call[session] = self.now

    @rule(session=NAMES)
    def close(self, session: str) -> None:
        self.pins.close(session)

    @rule(version=st.integers(0, 4))
    def ask(self, version: int) -> None:
        try:
            self.pins.ask(version, self.now)
        except PinError:
            return
        self.decide()

    @rule(version=st.integers(0, 4))
    def withdraw(self, version: int) -> None:
        self.pins.withdraw(version)
        self.decide()

    @invariant()
    def one_version_a_session(self) -> None:
        assert all(len(versions) == 1 for versions in self.told.values())

    @invariant()
    def what_is_needed_is_held(self) -> None:
        assert {version for _, version in self.calls} <= self.pins.held
        assert {pin.version for pin in self.pins.sessions.values()} <= self.pins.held

    @invariant()
    def the_engine_has_what_is_said(self) -> None:
        assert self.engine == self.pins.held | self.pins.loading
        assert not self.pins.held & self.pins.loading

    @invariant()
    def never_more_than_there_is_room_for(self) -> None:
        assert len(self.engine) <= self.most
        assert len(self.pins.sessions) <= self.sessions

    @invariant()
    def leases_end(self) -> None:
        """After a decision no session rests for longer than its lease."""
        self.decide()
        running = {session for session, _ in self.calls}
        for session in self.pins.sessions:
            assert session in running or self.now < self.last_call[session] + LEASE

    @invariant()
    def nothing_is_held_for_nobody(self) -> None:
        """After a decision only the newest versions are held that nobody needs."""
        self.decide()
        spare = {version for version in self.pins.held if not self.pins.needed(version)}
        assert spare <= set(sorted(self.pins.held)[-self.keep :])


TestPins = PinMachine.TestCase
TestPins.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def held(*versions: int, most: int = 4, keep: int = 1) -> Pins:
    pins = Pins(LEASE, most, 10, keep)
    for version in versions:
        pins.publish(version)
        for command in pins.decide(0.0):
            if isinstance(command, Load):
                pins.ready(command.version)
    return pins


def test_a_session_keeps_its_version_over_publishes_until_its_lease_ends() -> None:
    pins = held(0)
    assert pins.begin("s", None, 0.0) == 0
    pins.end("s", 0, 1.0)
    pins.publish(1)
    assert pins.decide(2.0) == [Load(1)]
    pins.ready(1)
    assert pins.begin(None, None, 3.0) == 1
    assert pins.begin("s", None, 3.0) == 0
    assert pins.decide(100.0) == [], "a call under way outlives the lease"
    pins.end("s", 0, 100.0)
    assert pins.decide(109.0) == []
    assert pins.decide(110.0) == [Unload(0)]
    with pytest.raises(PinError, match="is over") as refused:
        pins.begin("s", None, 111.0)
    assert refused.value.refusal == "session-over"


def test_a_session_that_is_over_goes_on_while_its_version_is_there() -> None:
    pins = held(0, 1, keep=2)
    assert pins.begin("s", 0, 0.0) == 0
    pins.end("s", 0, 0.0)
    assert pins.close("s")
    assert not pins.close("s")
    assert pins.begin("s", None, 1.0) == 0


def test_a_publish_waits_while_every_version_is_pinned() -> None:
    pins = held(0, most=1)
    pins.begin("s", None, 0.0)
    pins.end("s", 0, 0.0)
    pins.publish(1)
    assert pins.decide(1.0) == []
    assert pins.begin("t", None, 1.0) == 0
    pins.end("t", 0, 1.0)
    pins.close("s")
    pins.close("t")
    assert pins.decide(2.0) == [Unload(0), Load(1)]


def test_versions_that_were_skipped_are_never_loaded() -> None:
    pins = held(0, most=2)
    pins.publish(1)
    pins.publish(2)
    assert pins.decide(0.0) == [Load(2)]


def test_each_refusal_says_which_rule_refuses() -> None:
    pins = Pins(LEASE, 1, 1)

    def refused(session: str | None, version: int | None) -> str:
        with pytest.raises(PinError) as error:
            pins.begin(session, version, 0.0)
        return error.value.refusal

    assert refused(None, None) == "not-ready"
    pins.publish(0)
    pins.decide(0.0)
    pins.ready(0)
    assert refused(None, 7) == "unknown-version"
    pins.begin("s", None, 0.0)
    assert refused("s", 1) == "other-version"
    assert refused("t", None) == "too-many-sessions"
    pins.publish(1)
    with pytest.raises(PinError) as error:
        pins.ask(1, 0.0)
    assert error.value.refusal == "no-room"
