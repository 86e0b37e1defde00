"""A parcel is read by the lane it was attached to, or it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat import events as e
from offbeat.backends.local import Name
from offbeat.backends.parcels import parcel_file, take_parcel, write_parcel
from offbeat.errors import EngineError
from offbeat.live.lanes import LaneDesk
from offbeat.ports import Parcel, Request
from tests.live.conftest import Puppets


def parcel(trajectory_id: int) -> Parcel:
    return Parcel(Request(trajectory_id, 0, (1, 2), 0, 4))


def arrive(desk: LaneDesk, run: Path, to: int, *trajectory_ids: int, wanted: int) -> None:
    """Lane 0 gives these up; the first `wanted` of them are attached to lane `to`."""
    for trajectory_id in trajectory_ids:
        write_parcel(run, 0, parcel(trajectory_id))
    zeros = (0,) * len(trajectory_ids)
    desk.offer(e.Departed(0, trajectory_ids, zeros, zeros, zeros, (0.0,) * len(trajectory_ids), 1.0))
    desk.claim(e.Attach(to, 0, trajectory_ids[:wanted], zeros[:wanted]))
    desk.drop_unclaimed()


def left(run: Path) -> list[str]:
    return sorted(file.name for file in (run / "parcels").glob("*"))


def test_what_a_lane_did_not_read_before_it_ended_is_gone(tmp_path: Path, puppets: Puppets) -> None:
    desk = LaneDesk(puppets, tmp_path, 1, {}, 0.0)  # type: ignore[arg-type]
    for lane in (0, 1, 2):
        desk.start(lane)
    arrive(desk, tmp_path, 1, 5, 6, 7, wanted=2)
    arrive(desk, tmp_path, 1, 8, wanted=1)
    arrive(desk, tmp_path, 2, 9, wanted=1)
    assert left(tmp_path) == [f"{i}-0.msgpack" for i in (5, 6, 8, 9)]
    assert take_parcel(tmp_path, 6, 0) == parcel(6)
    del puppets.workers[Name("rollout", 1)]
    desk.lost(Name("rollout", 1), "killed")
    desk.start(1)
    assert left(tmp_path) == ["9-0.msgpack"], "lane 2 has yet to read its own"


def test_the_next_session_finds_none(tmp_path: Path, puppets: Puppets) -> None:
    write_parcel(tmp_path, 0, parcel(5))
    LaneDesk(puppets, tmp_path, 1, {}, 0.0)  # type: ignore[arg-type]
    assert left(tmp_path) == []


def test_a_parcel_that_cannot_be_read_is_an_error_and_gone(tmp_path: Path) -> None:
    write_parcel(tmp_path, 0, parcel(5))
    parcel_file(tmp_path, 5, 0).write_bytes(b"\xff")
    with pytest.raises(EngineError, match="trajectory 5"):
        take_parcel(tmp_path, 5, 0)
    assert left(tmp_path) == []
    with pytest.raises(EngineError, match="trajectory 5"):
        take_parcel(tmp_path, 5, 0)
