"""The levers of the autopilot over a run, told from its announcements alone; none where it is off."""

from __future__ import annotations

from offbeat.report.figures_learning import session_steps
from offbeat.report.read import Run
from offbeat.report.story import Story
from offbeat.report.style import BLUE, GREEN, ORANGE, Figure, Trace, line, spec


def levers(run: Run, story: Story) -> dict[str, float] | None:
    """Where the levers stand at the end; None without an autopilot."""
    if not run.settings.learner.autopilot:
        return None
    found = dict(_at_rest(run))
    found.update({steer.lever: steer.after for _, steer in story.steers})
    return found


def autopilot_figures(run: Run, story: Story) -> list[Figure]:
    """One figure: each lever as a share of what it is where nothing is held back."""
    if not run.settings.learner.autopilot:
        return []
    start, last = _at_rest(run), max((trained.version for _, _, trained in story.publishes), default=0)
    traces: list[Trace] = []
    for lever, colour in (("projection", GREEN), ("learning rate", BLUE), ("staleness", ORANGE)):
        whole = start[lever] or 1.0
        points = [(0, start[lever])]
        points += [(steer.version, steer.after) for _, steer in story.steers if steer.lever == lever]
        points.append((last, points[-1][1]))
        x, y = [version for version, _ in points], [value / whole for _, value in points]
        shape = {"shape": "hv", "color": colour, "width": 1.5}
        traces.append(line(x, y, lever, colour, f"{lever} at %{{y:.0%}}", line=shape))
    caption = (
        "What the autopilot allows: learning rate and staleness bound as shares of the settings, projection as a share"
        " of its full strength. Each move, with its reason, is among the incidents."
    )
    drawn = spec(traces, "version published", "share", session_steps(story), height=240, yaxis_tickformat=".0%")
    return [Figure("autopilot", "Autopilot", caption, drawn if last else None, size="third")]


def _at_rest(run: Run) -> dict[str, float]:
    return {"projection": 0.0, "learning rate": 1.0, "staleness": float(run.settings.schedule.staleness_bound)}
