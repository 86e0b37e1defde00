"""The laws by name, which of them a schedule promises, and what a breach is.

*Independence*: the table is written down here on its own; what the scheduler believes it promises is not asked.
A schedule that is not in the table promises everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Law = Literal["c1", "lost", "consumed_twice", "c3", "conservation", "versions", "rewards", "payloads", "prompts"]
LAWS: tuple[Law, ...] = get_args(Law)

SENTENCES: dict[Law, str] = {
    "c1": "C1  one version samples every token of a trajectory",
    "lost": "C2  nothing issued is lost",
    "consumed_twice": "C2  nothing is consumed twice",
    "c3": "C3  nothing consumed is staler than the bound",
    "conservation": "every group is in one place, every trajectory runs once at a time",
    "versions": "versions follow each other, one per batch",
    "rewards": "every consumed trajectory has one accepted reward",
    "payloads": "what was trained on is stored as it was announced",
    "prompts": "a group is of one prompt, and no prompt is passed over",
}

NOT_PROMISED: dict[str, frozenset[Law]] = {
    "partial": frozenset({"c1", "c3"}),
    "in-flight": frozenset({"c1", "c3"}),
    "repack": frozenset({"c3"}),
}


def promised(schedule: str) -> tuple[Law, ...]:
    """The laws that a run of this schedule is judged by, in their usual order."""
    given_up = NOT_PROMISED.get(schedule, frozenset())
    return tuple(law for law in LAWS if law not in given_up)


@dataclass(frozen=True)
class Breach:
    """`count` trajectories (or versions) break a law; `evidence` says which, with sequence numbers of the log."""

    law: Law
    evidence: str
    count: int = 1
