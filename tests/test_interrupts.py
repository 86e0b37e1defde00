"""No interrupt is lost, whoever hears it first."""

from __future__ import annotations

import os
import signal
import weakref

import pytest

from offbeat import interrupts

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


class Anything:
    pass


def forgotten(number: signal.Signals) -> None:
    """Interrupt this process where Python prints the exception and goes on."""
    thing = Anything()
    ref = weakref.ref(thing, lambda _: os.kill(os.getpid(), number))
    del thing
    assert ref() is None


@BOTH
def test_before_a_run_both_end_the_command(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with interrupts.raised(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@BOTH
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_a_callback_swallowed_stops_the_run(number: signal.Signals) -> None:
    told: list[str] = []
    with interrupts.raised():
        forgotten(number)
        with interrupts.asked(told.append):
            assert told == [f"stopped by {number.name}"]
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)


@BOTH
def test_the_first_asks_and_the_second_ends(number: signal.Signals) -> None:
    told: list[str] = []
    with interrupts.raised(), interrupts.asked(told.append):
        assert told == []
        os.kill(os.getpid(), number)
        assert told == [f"stopped by {number.name}"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_what_one_command_heard_does_not_stop_the_next() -> None:
    told: list[str] = []
    with interrupts.raised(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    with interrupts.raised(), interrupts.asked(told.append):
        assert told == []
