"""Dividing lanes among versions in proportion to their work: largest remainder with a floor, and minimal movement.

*Partition law*: the shares add up to the seats, no version is above one seat a lane, and none that has work goes
without while there are seats for all. Plain rounding (DORA, arXiv 2604.26256v1, Algorithm 1) keeps neither.
This file knows numbers only, no lanes' health, trajectories or schedules.
"""

from __future__ import annotations

from collections.abc import Mapping


def partition(seats: int, lanes: int, load: Mapping[int, int], floor: Mapping[int, int]) -> dict[int, int]:
    """Seats of each version: at least `floor`, at most `lanes`, otherwise in proportion to `load`.

    `load` and `floor` have the same keys, versions, with load >= 1. Where the floors do not fit, the newest version
    gives way first, down to nothing. Seats stay over only if every version is on every lane.
    """
    share = {version: min(floor[version], lanes) for version in load}
    for version in sorted(share, reverse=True):
        share[version] -= min(share[version], max(0, sum(share.values()) - seats))
    total = sum(load.values())
    quota = {version: seats * load[version] / total for version in load}
    while sum(share.values()) < seats:
        below = [version for version in share if share[version] < lanes]
        if not below:
            break
        share[max(below, key=lambda v: (quota[v] - share[v], v))] += 1
    return share


def keepers(want: Mapping[int, int], using: Mapping[int, Mapping[int, int]], room: int) -> dict[int, set[int]]:
    """Which versions each lane is to hold, so that few trajectories move.

    `want` is the seats of each version, `using` what each lane runs (lane -> version -> trajectories), `room` the
    versions one lane can hold. A version stays where most of it runs; seats that are left go to the lanes with least.
    """
    held: dict[int, set[int]] = {lane: set() for lane in using}
    left = dict(want)
    running = [
        (-count, version, lane) for lane, versions in using.items() for version, count in versions.items() if count
    ]
    for _, version, lane in sorted(running):
        if left.get(version, 0) > 0 and len(held[lane]) < room:
            held[lane].add(version)
            left[version] -= 1
    for version in sorted(left):
        open_lanes = [lane for lane in held if version not in held[lane] and len(held[lane]) < room]
        open_lanes.sort(key=lambda lane: (len(held[lane]), sum(using[lane].values()), lane))
        for lane in open_lanes[: left[version]]:
            held[lane].add(version)
    return held
