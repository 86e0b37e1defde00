"""Staleness and the demand bound that keeps it (C3). The only place that subtracts versions.

`iteration` is the next RL iteration to start, equal to the trainer's version when it starts. Outstanding
trajectories of version <= u must all be consumed by iteration u + K, and the iterations from `iteration` to
u + K have room for `capacity(u)` of them: a demand bound, as in earliest-deadline-first scheduling.
*Bounded-staleness invariant*: outstanding(u) <= capacity(u) for every u. Admission keeps it while trajectories
are added, the start rule keeps it when a batch is taken; the start rule is the guarantee, admission is what
makes it satisfiable. Proof: docs/theory.md, tests/flow/test_bounded_staleness.py.
"""

from __future__ import annotations

from collections.abc import Callable

Outstanding = Callable[[int], int]
"""outstanding(u): trajectories issued, not yet given to the trainer, of version <= u."""


def staleness(iteration: int, version: int) -> int:
    """Publishes between sampling and consumption: the trainer's version at consumption minus the sampler's."""
    return iteration - version


def capacity(u: int, iteration: int, bound: int, batch: int) -> int:
    """Most trajectories of version <= u that the iterations `iteration` .. u + bound can consume."""
    return (u + bound - iteration + 1) * batch


def admits(
    outstanding: Outstanding, version: int, newest: int, iteration: int, bound: int, batch: int, size: int
) -> bool:
    """Admission: may `size` more trajectories start under `version`, while `newest` is the newest version?"""
    return all(outstanding(u) + size <= capacity(u, iteration, bound, batch) for u in range(version, newest + 1))


def may_start(rest: Outstanding, newest: int, iteration: int, bound: int, batch: int) -> bool:
    """Start rule: `rest(u)` is what stays outstanding if the batch of `iteration` is taken now."""
    return all(
        rest(u) <= capacity(u, iteration + 1, bound, batch) for u in range(max(0, iteration - bound), newest + 1)
    )
