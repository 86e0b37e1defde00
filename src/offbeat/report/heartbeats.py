"""What the lanes said while they worked: slots in use and tokens decoded, from the heartbeats (Progress) alone.

A lane counts its tokens anew whenever its process is started, so counts are compared within one life of a lane only.
Unlike finished trajectories, this includes evaluation, work under way and work that was lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat import events as e
from offbeat.report.bins import Floats, mean_rate
from offbeat.report.read import Run


@dataclass(frozen=True)
class Heartbeats:
    """`times`, `busy` [N]: slots in use over all lanes, as known after each beat. `starts`, `ends`, `tokens` [M]:
    tokens decoded between two beats of one life of a lane. Times are seconds of run time.
    """

    times: Floats
    busy: Floats
    starts: Floats
    ends: Floats
    tokens: Floats

    def decoded_rate(self, edges: Floats) -> Floats:
        """Tokens decoded a second in each bin [B]."""
        return mean_rate(self.starts, self.ends, self.tokens, edges)

    def mean_busy(self, edges: Floats) -> Floats:
        """Mean over the beats in each bin [B]; NaN in a bin without a beat."""
        beats, _ = np.histogram(self.times, edges)
        sums, _ = np.histogram(self.times, edges, weights=self.busy)
        result: Floats = np.divide(sums, beats, out=np.full(len(beats), np.nan), where=beats > 0)
        return result


def heartbeats(run: Run) -> Heartbeats:
    """Collect the beats of a run."""
    last: dict[int, tuple[float, int]] = {}
    busy: dict[int, int] = {}
    beats: list[tuple[float, int]] = []
    spans: list[tuple[float, float, int]] = []
    for record in run.records:
        match record.event:
            case e.Opened():
                last.clear()
                busy.clear()
            case e.LaneReady(lane=lane):
                last[lane] = (record.now, 0)
                busy[lane] = 0
            case e.LaneLost(lane=lane):
                last.pop(lane, None)
                busy.pop(lane, None)
            case e.Progress(lane=lane, busy_slots=slots, decoded=decoded):
                since, before = last.get(lane, (record.now, decoded))
                if decoded > before:
                    spans.append((since, record.now, decoded - before))
                last[lane] = (record.now, decoded)
                busy[lane] = slots
                beats.append((record.now, sum(busy.values())))
            case _:
                pass
    times, slots_busy = _columns(beats, 2)
    return Heartbeats(times, slots_busy, *_columns(spans, 3))


def _columns(rows: list[tuple[float, int]] | list[tuple[float, float, int]], count: int) -> list[Floats]:
    """The columns of equally long rows; empty columns where there are no rows."""
    table = np.array(rows, dtype=np.float64).reshape(-1, count)
    return list(table.T)
