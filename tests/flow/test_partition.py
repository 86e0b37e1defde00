"""The partition law, against the textbook's largest-remainder method, and minimal movement."""

from __future__ import annotations

from math import ceil, floor

from hypothesis import given
from hypothesis import strategies as st

from offbeat.flow.partition import keepers, partition

loads = st.dictionaries(st.integers(0, 9), st.integers(1, 60), min_size=1, max_size=6)


def largest_remainder(seats: int, load: dict[int, int]) -> dict[int, int]:
    """The textbook: whole quotas first, what is left to the largest remainders (ties: the newer version)."""
    quota = {version: seats * count / sum(load.values()) for version, count in load.items()}
    share = {version: floor(part) for version, part in quota.items()}
    order = sorted(share, key=lambda v: (quota[v] - share[v], v), reverse=True)
    for version in order[: seats - sum(share.values())]:
        share[version] += 1
    return share


@given(loads, st.integers(1, 40))
def test_without_floors_it_is_the_largest_remainder_method(load: dict[int, int], seats: int) -> None:
    assert partition(seats, seats, load, dict.fromkeys(load, 0)) == largest_remainder(seats, load)


@given(loads, st.integers(1, 12), st.integers(1, 4), st.integers(1, 16))
def test_partition_law(load: dict[int, int], lanes: int, room: int, slots: int) -> None:
    seats = lanes * room
    least = {version: ceil(count / slots) for version, count in load.items()}
    share = partition(seats, lanes, load, least)
    assert sum(share.values()) == min(seats, lanes * len(load))
    assert all(0 <= part <= lanes for part in share.values())
    if sum(min(lanes, part) for part in least.values()) <= seats:
        assert all(share[version] >= min(lanes, least[version]) for version in load), "a version with work starves"


def test_rounding_gives_five_of_four_lanes_where_the_partition_gives_four() -> None:
    """DORA's Fig. 7 state; plain rounding is what Algorithm 1 prints."""
    load = {2: 4, 3: 4, 4: 16}
    assert sum(ceil(4 * count / 24 - 0.5) for count in load.values()) == 5
    assert partition(4, 4, load, dict.fromkeys(load, 1)) == {2: 1, 3: 1, 4: 2}


def test_the_newest_version_gives_way_where_floors_do_not_fit() -> None:
    assert partition(3, 3, {1: 9, 2: 5, 3: 40}, {1: 2, 2: 1, 3: 1}) == {1: 2, 2: 1, 3: 0}


runs = st.dictionaries(
    st.integers(0, 7), st.dictionaries(st.integers(0, 5), st.integers(1, 20), max_size=3), min_size=1, max_size=8
)


@given(runs, st.integers(1, 4), st.data())
def test_keepers_give_each_version_its_seats_where_most_of_it_runs(
    using: dict[int, dict[int, int]], room: int, data: st.DataObject
) -> None:
    versions = sorted({version for held in using.values() for version in held} | {9})
    load = {version: sum(held.get(version, 0) for held in using.values()) + 1 for version in versions}
    want = partition(len(using) * room, len(using), load, dict.fromkeys(load, 1))
    kept = keepers(want, using, room)
    assert all(len(held) <= room for held in kept.values())
    for version in versions:
        holders = [lane for lane in kept if version in kept[lane]]
        assert len(holders) <= want[version]
        if room == 1:
            least_kept = min((using[lane].get(version, 0) for lane in holders), default=0)
            given_up = [lane for lane in using if version not in kept[lane] and not kept[lane]]
            assert all(using[lane].get(version, 0) <= least_kept for lane in given_up if holders)
