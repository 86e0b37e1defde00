"""Libraries for actors on machines that are not the driver's: there an actor of its own has them loaded for the others.

It is started where a first worker had to load its own, so that the next one on that machine, one that replaces it, say,
is there in a second. *Never-worse rule*: a worker that finds no server loads its own. Knows no messages.
"""

from __future__ import annotations

import os
from typing import Any

import ray

from offbeat.backends.forking import PLACES, share_libraries


class Libraries:
    """Made a Ray actor by `Machines`; ends with the driver."""

    def place(self) -> dict[str, str]:
        """What to add to the environment of workers here. What this node's Ray was started with is not ours to keep."""
        os.environ.pop(PLACES, None)
        return share_libraries()


class Machines:
    """Where workers find loaded libraries, by the boot of a machine: the driver's at once, others as they are met."""

    def __init__(self, boot: str, place: dict[str, str]) -> None:
        self._places = {boot: place}
        self._asked: dict[str, tuple[Any, Any]] = {}
        """The actor on a machine, which lives while it is kept here, and its answer."""

    def met(self, boot: str, node: str) -> None:
        """A worker runs on this machine, on this node of Ray's."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if boot in self._places or boot in self._asked:
            return
        remote: Any = ray.remote
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = remote(num_cpus=0, max_restarts=0, scheduling_strategy=there)(Libraries).remote()
        self._asked[boot] = actor, actor.place.remote()

    def places(self) -> dict[str, dict[str, str]]:
        """All that are known by now. Never waits."""
        for boot in self._asked.keys() - self._places.keys():
            _, answer = self._asked[boot]
            if ray.wait([answer], timeout=0)[0]:
                try:
                    self._places[boot] = ray.get(answer)
                except ray.exceptions.RayError:  # the next worker that is met there has it tried again
                    del self._asked[boot]
        return dict(self._places)

    def close(self) -> None:
        for actor, _ in self._asked.values():
            ray.kill(actor)
