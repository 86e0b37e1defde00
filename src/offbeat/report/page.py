"""The report of a run: one self-contained HTML page that opens offline, whatever state the run is in.

*Always a page*: an empty, interrupted or failed run gives one too, with a sentence where a figure would be.
This file only puts together what other parts of this room make.
"""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from offbeat.errors import RunDirectoryError
from offbeat.report.audit import Audit, audit
from offbeat.report.figures_alignment import alignment_figures
from offbeat.report.figures_autopilot import autopilot_figures
from offbeat.report.figures_flow import length_figure, staleness_figure
from offbeat.report.figures_health import learner_figures
from offbeat.report.figures_learning import learning_figures
from offbeat.report.figures_stability import stability_figures
from offbeat.report.figures_throughput import throughput_figures
from offbeat.report.read import Run, read_run
from offbeat.report.sections import (
    audit_section,
    card,
    embedded,
    header,
    incident_section,
    response_section,
    settings_section,
)
from offbeat.report.story import Story, tell
from offbeat.report.style import VERSION_CYCLE
from offbeat.report.summary import report_path, summary
from offbeat.report.timeline import timeline

_TIMELINE_CAPTION = (
    "One row for each rollout slot, coloured by the version that samples: where colours meet in one column, several"
    " versions generate at once; a gap is an idle slot (a bubble). Spare rows, at the bottom, are for evaluation."
    " Drag in the chart to zoom, or move the window on the strip above it."
)
_BUTTONS = {
    "steady": "A few seconds",
    "whole": "Whole run",
    "earlier": "← Earlier",
    "later": "Later →",
    "closer": "Zoom in",
    "wider": "Zoom out",
}


def write_report(run_directory: Path, out: Path | None = None) -> Path:
    """Write the page of a run and return where: `out`, or report.html in the run directory.

    Raises RunDirectoryError when the run cannot be read or the page cannot be written.
    """
    run = read_run(run_directory)
    page = report_path(run_directory, out)
    write_page(page, html(run, audit(run)))
    return page


def html(run: Run, audited: Audit) -> str:
    """The whole page as text."""
    story = tell(run)
    result = summary(run, audited)
    name = escape(run.directory.resolve().name)
    parts = [
        header(run, result, audited),
        section("What was learnt", "".join(map(card, learning_figures(run, story)))),
        section("Where the time went", _timeline(run, story) + "".join(map(card, throughput_figures(run, story)))),
        section(
            "What was trained on",
            card(staleness_figure(run, story)) + card(length_figure(run, story)) + response_section(run, story),
        ),
        section(
            "The learner's health", "".join(map(card, learner_figures(run, story) + alignment_figures(run, story)))
        ),
        _stability(run, story),
        section("Integrity", audit_section(audited) + incident_section(run)),
        section("Settings", settings_section(run.settings)),
    ]
    version = escape(run.meta.get("offbeat_version", ""))
    footer = f"Written by offbeat {version} from {len(run.records)} events of {name}/run.sqlite."
    return document(name, "".join(parts), footer)


def document(title: str, body: str, footer: str) -> str:
    """A self-contained page around `body`; all three are HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · offbeat</title>
<link rel="icon" href="data:,">
<style>{_asset("page.css")}</style>
</head>
<body>
<main>
<noscript><p>The figures need JavaScript; nothing is loaded from the network.</p></noscript>
{body}
<footer>{footer}</footer>
</main>
<script>{get_plotlyjs()}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def check_page(page: Path) -> None:
    """Raise RunDirectoryError where a page cannot be written: said before the work that it is to show."""
    if page.is_dir():
        raise RunDirectoryError(f"{page}: the report cannot be written (it is a directory); name a file in it")
    if not page.parent.is_dir():
        raise RunDirectoryError(f"{page}: the report cannot be written (its directory does not exist); make that first")
    aside = page.with_name(f".{page.name}.part")
    try:
        aside.touch()
        aside.unlink()
    except OSError as error:
        raise RunDirectoryError(f"{page}: the report cannot be written ({error.strerror}); choose another") from None


def write_page(page: Path, text: str) -> None:
    """Write a page whole or not at all. Raises RunDirectoryError where it cannot be written."""
    aside = page.with_name(f".{page.name}.part")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(page)
    except OSError as error:
        raise RunDirectoryError(f"{page}: the report cannot be written ({error.strerror}); choose another") from None


def _asset(name: str) -> str:
    return resources.files("offbeat.report").joinpath("assets", name).read_text(encoding="utf-8")


def section(title: str, body: str) -> str:
    """A heading and a grid of cards."""
    return f'<h2>{escape(title)}</h2>\n<div class="grid">{body}</div>\n'


def _stability(run: Run, story: Story) -> str:
    """Nothing at all for the log of a version that did not measure it."""
    figures = stability_figures(run, story) + autopilot_figures(run, story)
    return section("Stability", "".join(map(card, figures))) if figures else ""


def _timeline(run: Run, story: Story) -> str:
    data = timeline(run, story)
    head = f'<h3>Rollout slots and learner</h3><p class="caption">{_TIMELINE_CAPTION}</p>'
    if data is None:
        return f'<section class="card full">{head}<p class="nothing">No trajectory has finished yet.</p></section>'
    data["colours"] = VERSION_CYCLE
    buttons = "".join(
        f'<button type="button" data-deed="{deed}" aria-pressed="{"true" if deed == "steady" else "false"}">'
        f"{label}</button>"
        for deed, label in _BUTTONS.items()
    )
    cycle = len(VERSION_CYCLE)
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{_versions(i, cycle)}</span>'
        for i, colour in enumerate(VERSION_CYCLE)
        if i <= len(story.publishes)
    )
    text = embedded(json.dumps(data, separators=(",", ":")))
    return f"""<section class="card full">{head}
<div class="bar" id="timeline-bar">{buttons}<output id="timeline-output"></output></div>
<canvas class="overview" id="timeline-overview" aria-label="the whole run; drag to move the window"></canvas>
<div class="plot" id="timeline" role="img" aria-label="timeline of rollout slots and learner"></div>
<div class="versions">{legend}</div>
<script type="application/json" id="timeline-data">{text}</script></section>"""


def _versions(first: int, cycle: int) -> str:
    return f"versions {first}, {first + cycle}, {first + 2 * cycle}…"
