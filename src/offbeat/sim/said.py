"""What a simulated lane says: its state put into the words of `offbeat.events`. Changes nothing."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from offbeat import events as e
from offbeat.sim.costs import Tools
from offbeat.sim.lane import Response, SimLane


def finished(lane: SimLane, response: Response, cap: int, now: float) -> e.Finished:
    return e.Finished(
        response.trajectory_id,
        response.attempt,
        lane.index,
        0,
        response.versions_from,
        response.tokens,
        "length" if response.tokens >= cap else "stop",
        response.started,
        now,
        response.spans,
    )


def pressure(lane: SimLane) -> e.Progress:
    """A heartbeat that says what is parked."""
    here = [*lane.running.values(), *lane.parked]
    return e.Progress(
        lane=lane.index,
        trajectory_ids=tuple(r.trajectory_id for r in here),
        tokens=tuple(int(lane.decoded_by(r)) for r in here),
        busy_slots=len(lane.running),
        decoded=lane.decoded + 1,
        parked=tuple(r.trajectory_id for r in lane.parked),
        cached=int(lane.context),
    )


def departed(lane: SimLane, found: Sequence[Response], left: float) -> e.Departed:
    return e.Departed(
        lane=lane.index,
        trajectory_ids=tuple(r.trajectory_id for r in found),
        attempts=tuple(r.attempt for r in found),
        tokens=tuple(int(r.decoded) for r in found),
        slots=tuple(0 if r.started >= 0 else -1 for r in found),
        started=tuple(r.started if r.started >= 0 else left for r in found),
        ended=left,
    )


def in_turns(response: Response, tools: Tools, stream: random.Random) -> None:
    """Cut a response into its turns and draw the waits between them."""
    turns = min(tools.turns, response.tokens)
    mean = tools.seconds * stream.lognormvariate(0.0, tools.skew)
    each, rest = divmod(response.tokens, turns)
    waits = [stream.expovariate(1 / mean) if mean else 0.0 for _ in range(turns - 1)]
    response.turns = deque((wait, each) for wait in waits)
    response.left, response.later = float(each + rest), float(each * (turns - 1))
