"""What every rollout slot and the learner did when, as columns for the page's timeline.

One row for each slot that was ever used, one for the learner, one for evaluations; times in whole milliseconds of
run time. The page draws the visible window as an image, so the cost does not grow with the length of the run.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from offbeat import events as e
from offbeat.report.read import Run
from offbeat.report.story import Story


def timeline(run: Run, story: Story) -> dict[str, Any] | None:
    """Columns sorted by (row, start), or None while nothing has finished.

    rows: [{"label", "lane", "kind"}], row 0 at the bottom. Columns, one entry a segment: row, start, length (ms),
    version (that generated, or that was trained from, or evaluated), id (trajectory, iteration or version),
    tokens, attempt. `window` is the first view [from, to] in seconds, `sessions` where
    resumes lie, `capacity` the slots that the settings give.
    """
    if not story.finishes:
        return None
    decodings = list(story.decodings())
    slots = sorted({(d.lane, d.slot) for d in decodings})
    rows = [{"label": "evaluation", "lane": -1, "kind": "evaluation"}]
    limit = run.settings.rollout.slots
    for lane, slot in reversed(slots):
        label = f"lane {lane}, slot {slot}" if slot < limit else f"lane {lane}, spare row {slot}"
        rows.append({"label": label, "lane": lane, "kind": "slot"})
    rows.append({"label": "learner", "lane": -1, "kind": "learner"})
    row_of = {slot: len(slots) - i for i, slot in enumerate(slots)}
    segments = [
        (0, _ms(began), _ms(ended) - _ms(began), version, version, 0, 0) for began, ended, version in _exams(run)
    ]
    for d in decodings:
        began = _ms(d.started)
        length = max(1, _ms(d.ended) - began)
        segments.append((row_of[d.lane, d.slot], began, length, d.version, d.trajectory_id, d.tokens, d.attempt))
    for _, _, t in story.publishes:
        size = t.report.trajectories
        began = _ms(t.started)
        segments.append((len(rows) - 1, began, max(1, _ms(t.ended) - began), t.version - 1, t.version - 1, size, 0))
    segments.sort()
    names = ("row", "start", "length", "version", "id", "tokens", "attempt")
    columns = {name: list(column) for name, column in zip(names, zip(*segments, strict=True), strict=True)}
    end = max(run.wall_seconds, max(s[1] + s[2] for s in segments) / 1000)
    return {
        "rows": rows,
        **columns,
        "end": end,
        "capacity": run.settings.rollout.lanes * limit,
        "window": first_window(story, end),
        "sessions": [now for _, now, opened in story.sessions if opened.session > 0],
        "incidents": _losses(run),
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def first_window(story: Story, end: float) -> tuple[float, float]:
    """About three iterations (2 to 30 seconds) past the middle of the run: its steady state."""
    times = [now for _, now, _ in story.publishes]
    if len(times) < 3:
        return 0.0, end
    periods = [b - a for a, b in pairwise(times)]
    width = min(max(3 * median(periods), 2.0), 30.0, end)
    middle = times[len(times) * 3 // 5]
    start = min(max(0.0, middle - width / 2), end - width)
    return start, start + width


def _exams(run: Run) -> list[tuple[float, float, int]]:
    """(began, ended, version) of evaluations, from the command to the result."""
    asked: dict[int, float] = {}
    exams = []
    for record in run.records:
        match record.event:
            case e.Opened():
                asked.clear()
            case e.Evaluated(version=version) if version in asked:
                exams.append((asked.pop(version), record.now, version))
            case _:
                pass
        for command in record.commands:
            if isinstance(command, e.Evaluate):
                asked[command.version] = record.now
    return exams


def _losses(run: Run) -> list[tuple[float, str]]:
    """(run time, words) of processes that were lost."""
    found = []
    for record in run.records:
        if isinstance(record.event, e.LaneLost):
            found.append((record.now, f"lane {record.event.lane} lost"))
        if isinstance(record.event, e.LearnerLost):
            found.append((record.now, "learner lost"))
    return found
