"""Libraries for workers on Ray nodes that the driver's do not reach: an actor there has them loaded for all others.

It is started where a worker had to load its own, so that the next one on that node, one that replaces it, say, is there
in a second. Its end is the end of workers that were forked with it. *Never-worse rule*: who finds no server loads its
own, and says so, and another actor takes the place of one that is gone. Knows no messages.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import ray

from offbeat.backends.forking import PLACES, shared_libraries

PARTING_SECONDS = 2.0


class Libraries:
    """Made a Ray actor by `Nodes`; ends with the driver."""

    def __init__(self) -> None:
        self._loaded = ExitStack()

    def place(self) -> dict[str, str]:
        """What to add to the environment of workers here."""
        os.environ.pop(PLACES, None)  # what this node's Ray was started with may end before this run
        return self._loaded.enter_context(shared_libraries())

    def leave(self) -> None:
        self._loaded.close()


class Nodes:
    """Where workers find loaded libraries, by Ray's node, beside the driver's own."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, str]] = {}
        self._asked: dict[str, tuple[Any, Any]] = {}
        """The actor on a node, which lives while it is kept here, and its answer."""

    def loaded_its_own(self, node: str, was_told: bool) -> None:
        """A worker on this node did, though it was told a place, or because it was not."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if was_told:
            self._places.pop(node, None)
            gone, _ = self._asked.pop(node, (None, None))
            if gone is not None:
                ray.kill(gone)
        if node in self._asked:
            return
        remote: Any = ray.remote
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = remote(num_cpus=0, max_restarts=0, scheduling_strategy=there)(Libraries).remote()
        self._asked[node] = actor, actor.place.remote()

    def places(self) -> dict[str, dict[str, str]]:
        """What to add to the environment on each node that is known by now. Never waits."""
        for node in self._asked.keys() - self._places.keys():
            _, answer = self._asked[node]
            if ray.wait([answer], timeout=0)[0]:
                try:
                    self._places[node] = ray.get(answer)
                except ray.exceptions.RayError:  # the next worker that loads its own there has it tried again
                    del self._asked[node]
        return dict(self._places)

    def close(self) -> None:
        leaving = [actor.leave.remote() for actor, _ in self._asked.values()]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=PARTING_SECONDS)
        for actor, _ in self._asked.values():
            ray.kill(actor)
        self._asked.clear()
        self._places.clear()
