"""The half law: what a run's first half, fitted, says of its second; and where a miss comes from.

*Half law*: a cluster calibrated on what happened until the middle predicts trajectories a second from there on.
A miss has three sources. Two are measured with what the second half shows: the machine may have changed (`same_work`,
of which `at_pace` makes a cluster), and the policy may have learned something else than its trend said
(`knowing_the_policy`). What both leave is the simulator's own. This file reads no files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from offbeat import events as e
from offbeat.errors import SettingsError
from offbeat.sim.calibrate import FEWEST, batches_of, correlation, signal_of, whole_groups
from offbeat.sim.cluster import Cluster, changed
from offbeat.sim.replay import Row


def middle(rows: Sequence[Row]) -> int:
    """The iteration that ends the first half of a run's iterations. Raises SettingsError for one that is too short."""
    done = sum(isinstance(event, e.Trained) for _, event, _ in rows)
    if done < FEWEST:
        raise SettingsError(
            f"--calibrate: the run has {done} iterations; at least {FEWEST} are needed, half to fit and half to check"
        )
    return done // 2


def interrupted(rows: Sequence[Row]) -> set[int]:
    """The versions in whose making the run stood still, or was taken up again."""
    done, found = 0, set()
    for _, event, _ in rows:
        if isinstance(event, e.Suspended) or (isinstance(event, e.Opened) and event.session):
            found.add(done + 1)
        done += isinstance(event, e.Trained)
    return found


def second_half(publishes: Sequence[float], until: int, batch: int, but: Collection[int] = ()) -> float:
    """Trajectories trained on per second from the `until`-th publish to the last, given when each was. `but`: versions
    that do not count, nor their time. Raises SettingsError where none is left."""
    made = [version for version in range(until + 1, len(publishes) + 1) if version not in but]
    if not made:
        raise SettingsError("--calibrate: the run stood still in every iteration of its second half; give another")
    return len(made) * batch / sum(publishes[version - 1] - publishes[version - 2] for version in made)


def same_work(rows: Sequence[Row], about: Cluster, group_size: int, until: int) -> float:
    """What the machine took after the `until`-th publish for training, over what the same batches cost as fitted."""
    after = [batch for batch in batches_of(rows, group_size) if batch.iteration > until]
    fitted = sum(about.training.seconds_at(1, batch.tokens, batch.signal) for batch in after)
    return sum(batch.seconds for batch in after) / fitted


def at_pace(about: Cluster, pace: float) -> Cluster:
    """`about` on a machine that takes `pace` times as long to train."""
    training = about.training
    parts = ("fixed_seconds", "work", "per_token_work", "per_signal_token_work")
    return changed(about, training={part: pace * getattr(training, part) for part in parts})


def knowing_the_policy(rows: Sequence[Row], about: Cluster, group_size: int, until: int) -> Cluster:
    """`about` with the lengths, and the trend of the share of groups whose rewards differ, that came after the
    `until`-th publish. Lengths as of all that finished then, without a trend; the old ones where nothing did.
    """
    after = [batch for batch in batches_of(rows, group_size) if batch.iteration > until]
    iteration, signal = np.array([(batch.iteration, batch.signal) for batch in after], dtype=float).T
    share, slope = signal_of(iteration, signal)
    done, finished = 0, []
    for _, event, _ in rows:
        done += isinstance(event, e.Trained)
        if done >= until and isinstance(event, e.Finished):
            finished.append(event)
    lengths = {
        "values": tuple(event.tokens for event in finished),
        "growth_per_version": 0.0,
        "correlation": correlation(whole_groups(finished, group_size)),
    }
    signals = {"signal_share": share, "signal_per_log_iteration": slope}
    return changed(about, training=signals, lengths=lengths if finished else {})
