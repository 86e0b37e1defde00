"""THE main loop: the next event, the decision, the record, the deeds.

    world.next_event --Event--> scheduler.handle --[Command]--> journal.record --> world.perform

The loop is the only writer of the ledger and of the run log. An event and the commands it caused are durable
before any of them is performed, so a run killed at any point is taken up by folding the log again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offbeat.events import Command, Event, Stop
from offbeat.flow.scheduler import Scheduler
from offbeat.ports import Journal, World

Observer = Callable[[Event, float, Sequence[Command]], None]


def run(world: World, scheduler: Scheduler, journal: Journal, observers: Sequence[Observer] = ()) -> Stop:
    """Go on until the scheduler says Stop, and return it. A resumed scheduler may start out stopped."""
    while True:
        event = world.next_event()
        now = world.now
        commands = scheduler.handle(event, now)
        journal.record(event, now, commands)
        for observer in observers:
            observer(event, now, commands)
        for command in commands:
            world.perform(command)
        if scheduler.stopped is not None:
            return scheduler.stopped
