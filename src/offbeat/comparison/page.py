"""The comparison as one self-contained HTML page: table, rewards, where each second went, timelines of all schedules.

Only puts figures together; every number comes from `measures` and `result`.
"""

from __future__ import annotations

from html import escape

from offbeat.comparison.measures import Measures
from offbeat.comparison.result import Entry, equal_wall_clock, speedup
from offbeat.comparison.table import ROWS
from offbeat.report.page import document, section
from offbeat.report.read import Run
from offbeat.report.sections import card, table
from offbeat.report.story import tell
from offbeat.report.style import (
    BLUE,
    GREEN,
    GREY,
    OCHRE,
    ORANGE,
    RED,
    VERSION_CYCLE,
    VIOLET,
    Figure,
    Trace,
    line,
    spec,
    trace,
)

COLOURS = (BLUE, GREY, ORANGE, VIOLET, GREEN, RED, OCHRE)
WINDOW_ITERATIONS = 6
SMOOTHED = 8
DEFINITIONS = (
    "Medians over the repeats, over each run's steady part (warm-up and the end left out). bound: trajectories a second"
    " if the learner never waited. rollout only: the part of an iteration that training does not overlap. slots busy:"
    " share of slot time spent decoding. bubble: (longest - mean) / longest response of a batch."
)


def html(found: list[Entry], runs: dict[str, Run], warmup: int) -> str:
    """The page. `runs` holds one run for each schedule, whose timeline is drawn; `found[0]` is what others are
    compared with."""
    run = next(iter(runs.values()))
    first = found[0]
    others = ", ".join(f"{speedup(first, other):.2f}x {other.schedule}" for other in found[1:])
    settings = run.settings
    lead = (
        f"{len(found)} schedules on {settings.task.name}, {len(first.by_repeat)} repeat(s) of"
        f" {settings.learner.iterations} iterations of {settings.schedule.train_batch_size} trajectories,"
        f" K = {settings.schedule.max_staleness}, one after the other on the same cores."
    )
    title = f"{first.schedule} trains on {first.median('trajectories_per_second'):.0f} trajectories a second"
    head = (
        f'<header><div class="eyebrow"><span>offbeat comparison</span></div><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(lead)} {escape(f"That is {others}." if others else "")}</p></header>'
    )
    parts = [
        head,
        section("Side by side", _table(found) + _datasets(found)),
        section("What was learnt", card(_rewards(found, by_time=False)) + card(_rewards(found, by_time=True))),
        section("Where the time went", card(_seconds(found)) + "".join(_timeline(name, r) for name, r in runs.items())),
    ]
    return document("comparison", "".join(parts), f"Warm-up left out: {warmup} iterations.")


def _table(found: list[Entry]) -> str:
    walls = equal_wall_clock(found)
    head = [*(entry.schedule for entry in found), ""]
    rows = [[*(_cell(entry, name, form) for entry in found), heading.strip()] for heading, name, form in ROWS]
    rows.append(
        ["–" if walls[e.schedule] is None else f"{walls[e.schedule]:.3f}" for e in found] + ["reward, equal time"]
    )
    rows.append([*(str(entry.split) for entry in found), "threads a worker"])
    body = table(head, rows, numbers=len(found)).replace('class="scroll"', "")
    return f'<section class="card full"><p class="caption">{escape(DEFINITIONS)}</p>{body}</section>'


def _datasets(found: list[Entry]) -> str:
    """Coverage of prompts and length bias, first repeat."""
    rows = []
    for entry in found:
        for name, p in entry.by_repeat[0].datasets.items():
            lengths = ["–" if x is None else f"{x:.1f}" for x in (p.finished_length, p.trained_length)]
            rows.append([str(p.issued), str(p.trained), *lengths, entry.schedule, name])
    head = ["groups issued", "trained on", "length finished", "length trained on", "schedule", "data set"]
    caption = (
        "Prompts and mean response lengths by data set, whole run, first repeat. Where short responses are favoured,"
        " those trained on are shorter than those finished."
    )
    return f'<section class="card full"><p class="caption">{caption}</p>{table(head, rows, numbers=4)}</section>'


def _cell(entry: Entry, name: str, form: str) -> str:
    low, high = entry.interval(name)
    value = format(entry.median(name), form)
    return value if low == high else f"{value} ({format(low, form)}–{format(high, form)})"


def _rewards(found: list[Entry], by_time: bool) -> Figure:
    """Smoothed training reward of the first repeat, over iterations or over seconds."""
    traces = []
    for entry, colour in zip(found, COLOURS, strict=False):
        measures = entry.by_repeat[0]
        x = list(measures.ends) if by_time else list(range(1, len(measures.rewards) + 1))
        traces.append(line(x, _smooth(measures), entry.schedule, colour, "%{y:.3f} " + entry.schedule))
    name, over = ("reward-time", "seconds") if by_time else ("reward-steps", "iteration")
    title = "Reward over wall clock" if by_time else "Reward over iterations"
    caption = f"Mean reward of training batches, a running mean over {SMOOTHED} of them; first repeat."
    return Figure(name, title, caption, spec(traces, over, "reward"))


def _smooth(measures: Measures) -> list[float]:
    rewards = measures.rewards
    return [
        sum(rewards[max(0, i - SMOOTHED + 1) : i + 1]) / len(rewards[max(0, i - SMOOTHED + 1) : i + 1])
        for i in range(len(rewards))
    ]


def _seconds(found: list[Entry]) -> Figure:
    names = [entry.schedule for entry in found]
    traces = [
        trace("bar", x=names, y=[entry.median(key) for entry in found], name=label, marker={"color": colour})
        for key, label, colour in (
            ("learner_seconds", "training and publishing", ORANGE),
            ("rollout_only_seconds", "rollout only", BLUE),
        )
    ]
    chart = spec(traces, "", "seconds", barmode="stack")
    return Figure("seconds", "Seconds of an iteration", "The learner's work, and the wait for rollouts on top.", chart)


def _timeline(name: str, run: Run) -> str:
    """Slots (one row each) and the learner over a few iterations in the middle of the run."""
    story = tell(run)
    published = [t for _, _, t in story.publishes]
    middle = len(published) // 2
    start = published[max(0, middle - WINDOW_ITERATIONS // 2)].started
    end = published[min(len(published) - 1, middle + WINDOW_ITERATIONS // 2)].ended
    rows: dict[tuple[int, int], int] = {}
    lines: dict[int, tuple[list[float | None], list[int | None]]] = {}
    for decoding in story.decodings():
        if decoding.ended <= start or decoding.started >= end:
            continue
        row = rows.setdefault((decoding.lane, decoding.slot), len(rows) + 2)
        _segment(lines, decoding.version % len(VERSION_CYCLE), decoding.started - start, decoding.ended - start, row)
    for trained in published:
        if trained.ended > start and trained.started < end:
            colour = (trained.version - 1) % len(VERSION_CYCLE)
            for row in (-6, -4, -2):
                _segment(lines, colour, trained.started - start, trained.ended - start, row)
    traces: list[Trace] = [
        trace("scattergl", x=x, y=y, mode="lines", line={"width": 2, "color": VERSION_CYCLE[colour]}, showlegend=False)
        for colour, (x, y) in sorted(lines.items())
    ]
    chart = spec(traces, "seconds", "slots; learner below", height=260, hovermode=False, xaxis_range=[0, end - start])
    caption = f"{WINDOW_ITERATIONS} iterations in mid-run, coloured by the first token's version; learner below."
    return card(Figure(f"timeline-{name}", name, caption, chart, size="full"))


def _segment(
    lines: dict[int, tuple[list[float | None], list[int | None]]], colour: int, start: float, end: float, row: int
) -> None:
    x, y = lines.setdefault(colour, ([], []))
    x += [start, end, None]
    y += [row, row, None]
