"""The half law: what a run's first half, fitted, says of its second; and where a miss comes from.

*Half law*: a cluster calibrated on what happened until the middle predicts trajectories a second from there on.
A miss has three sources, and each is measured with what the second half shows: the machine may have changed
(`same_work`), the policy may have learned something else than its trend said (`knowing_the_policy` takes that out),
and what is left is the simulator's own error. This file reads no files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offbeat import events as e
from offbeat.errors import SettingsError
from offbeat.sim.calibrate import FEWEST, batches_of, signal_of
from offbeat.sim.cluster import Cluster
from offbeat.sim.replay import Row


def middle(rows: Sequence[Row]) -> int:
    """The iteration that ends the first half of a run's iterations. Raises SettingsError for one that is too short."""
    done = sum(isinstance(event, e.Trained) for _, event, _ in rows)
    if done < FEWEST:
        raise SettingsError(
            f"--calibrate: the run has {done} iterations; at least {FEWEST} are needed, half to fit and half to check"
        )
    return done // 2


def second_half(publishes: Sequence[float], until: int, batch: int) -> float:
    """Trajectories trained on per second from the `until`-th publish to the last, given when each was."""
    return (len(publishes) - until) * batch / (publishes[-1] - publishes[until - 1])


def same_work(rows: Sequence[Row], about: Cluster, group_size: int, until: int) -> float:
    """What the machine took after the `until`-th publish for training, over what the same batches cost as fitted."""
    after = [batch for batch in batches_of(rows, group_size) if batch.iteration > until]
    fitted = sum(about.training.seconds_at(1, batch.tokens, batch.signal) for batch in after)
    return sum(batch.seconds for batch in after) / fitted


def knowing_the_policy(rows: Sequence[Row], about: Cluster, group_size: int, until: int) -> Cluster:
    """`about` with the lengths and the share of groups whose rewards differ that came after the `until`-th publish."""
    after = [batch for batch in batches_of(rows, group_size) if batch.iteration > until]
    iteration, signal = np.array([(batch.iteration, batch.signal) for batch in after], dtype=float).T
    share, slope = signal_of(iteration, signal)
    done, lengths = 0, []
    for _, event, _ in rows:
        done += isinstance(event, e.Trained)
        if done >= until and isinstance(event, e.Finished):
            lengths.append(event.tokens)
    signals = {"signal_share": share, "signal_per_log_iteration": slope}
    as_was = {"values": tuple(lengths), "growth_per_version": 0.0}
    return about.model_copy(
        update={
            "training": about.training.model_copy(update=signals),
            "lengths": about.lengths.model_copy(update=as_was),
        }
    )
