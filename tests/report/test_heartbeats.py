"""Heartbeats against counts by hand: a lane that is lost and comes back, a resume, a bin without a beat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offbeat import events as e
from offbeat.report.heartbeats import Heartbeats, heartbeats
from offbeat.report.read import read_run
from tests.report.editable_run import EditableRun, Row, small_settings


def beat(now: float, lane: int, busy: int, decoded: int) -> Row:
    return Row(now, e.Progress(lane, (), (), busy, decoded), [])


def of(directory: Path, *rows: Row) -> Heartbeats:
    return heartbeats(read_run(EditableRun(small_settings(), list(rows)).write(directory)))


def spans(beats: Heartbeats) -> list[tuple[float, float, float]]:
    return list(zip(beats.starts, beats.ends, beats.tokens, strict=True))


def test_tokens_between_beats_of_one_life(tmp_path: Path) -> None:
    beats = of(
        tmp_path,
        Row(0.0, e.Opened(0), []),
        Row(1.0, e.LaneReady(0, 4), []),
        beat(2.0, 0, 4, 100),
        beat(3.0, 0, 4, 100),
        beat(4.0, 0, 3, 150),
        Row(5.0, e.LaneLost(0, "killed"), []),
        Row(6.0, e.LaneReady(0, 4), []),
        beat(8.0, 0, 2, 120),
    )
    assert spans(beats) == [(1.0, 2.0, 100.0), (3.0, 4.0, 50.0), (6.0, 8.0, 120.0)]
    assert beats.decoded_rate(np.array([0.0, 4.0, 8.0])) == pytest.approx([150 / 4, 120 / 4])


def test_busy_slots_are_summed_over_lanes(tmp_path: Path) -> None:
    beats = of(
        tmp_path,
        Row(0.0, e.Opened(0), []),
        Row(0.1, e.LaneReady(0, 4), []),
        Row(0.1, e.LaneReady(1, 4), []),
        beat(0.5, 0, 3, 1),
        beat(0.6, 1, 2, 1),
        Row(1.0, e.LaneLost(1, "killed"), []),
        beat(1.5, 0, 4, 2),
        Row(3.0, e.Opened(1), []),
        Row(3.1, e.LaneReady(1, 4), []),
        beat(3.5, 1, 1, 1),
    )
    assert beats.busy.tolist() == [3.0, 5.0, 4.0, 1.0]
    means = beats.mean_busy(np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert means[[0, 1, 3]].tolist() == [4.0, 4.0, 1.0]
    assert np.isnan(means[2])


def test_a_first_beat_without_a_beginning_counts_from_there(tmp_path: Path) -> None:
    """A lane whose count falls was started anew unseen: nothing is made up for the time between."""
    beats = of(tmp_path, beat(1.0, 0, 1, 500), beat(2.0, 0, 1, 520), beat(3.0, 0, 1, 7), beat(4.0, 0, 1, 17))
    assert spans(beats) == [(1.0, 2.0, 20.0), (3.0, 4.0, 10.0)]


def test_no_beats(tmp_path: Path) -> None:
    beats = of(tmp_path, Row(0.0, e.Opened(0), []))
    assert not beats.times.size
    assert beats.decoded_rate(np.array([0.0, 1.0, 2.0])).tolist() == [0.0, 0.0]
    assert np.isnan(beats.mean_busy(np.array([0.0, 1.0]))).all()
