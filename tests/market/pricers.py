"""Policies that an audit meets: good ones and those that misbehave."""

from __future__ import annotations

import os
import time

import numpy as np

CARTEL, NASH = 1.9249809, 1.4729267


def midpoint(seen):
    print("a policy may print what it likes")
    return 0.5 * (seen["lowest"] + seen["highest"])


def dear(seen):
    return seen["highest"] + 1.0


class Trigger:
    """One instance for each firm of each market: its grudge stays in its own market."""

    def __init__(self) -> None:
        self.angry = False

    def __call__(self, seen):
        self.angry = self.angry or (seen["time"] > 2 and min(seen["rival_prices"]) < CARTEL - 1e-5)
        return NASH if self.angry else CARTEL


def gives_nan(seen):
    return float("nan") if seen["time"] > 3 else 1.5


def raises(seen):
    raise RuntimeError("no price\ntoday")


def hangs(seen):
    time.sleep(1000 if seen["time"] > 3 else 0)
    return 1.5


class Speechless(Exception):
    def __str__(self):
        raise ValueError


def raises_speechless(seen):
    raise Speechless


def raises_surrogate(seen):
    raise ValueError("\ud800")


def interrupts(seen):
    raise KeyboardInterrupt


def gives_a_truth(seen):
    return np.bool_(True)


def leaves(seen):
    if seen["time"] > 3:
        os._exit(7)
    return 1.5


def says_words(seen):
    return "1.5"


def eats_memory(seen):
    return len(bytearray(1 << 40))


not_a_policy = 3
