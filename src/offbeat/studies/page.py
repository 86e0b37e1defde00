"""A study as one self-contained HTML page. Only puts together what its findings hold; judges nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path

from offbeat.report.page import document, section, write_page
from offbeat.report.sections import card, duration, table
from offbeat.studies.study import Outcome

PAGE_NAME = "study.html"


def write_study(outcome: Outcome) -> Path:
    """Write the page into the study's directory and return where. Raises RunDirectoryError where it cannot."""
    page = outcome.directory / PAGE_NAME
    write_page(page, html(outcome))
    return page


def html(outcome: Outcome) -> str:
    """The whole page as text."""
    found = outcome.findings
    sizes = f"{outcome.cells} cells, {duration(outcome.core_seconds)} of one core, seeds from {outcome.first_seed} on."
    why = outcome.caution
    caution = f'<p class="lead"><strong>{escape(why)}</strong></p>' if why else ""
    verdicts = "".join(f"<li>{escape(words)}</li>" for words in found.verdicts)
    tables = "".join(
        f'<section class="card full"><h3>{escape(title)}</h3><p class="caption">{escape(caption)}</p>'
        f"{table(head, rows, numbers)}</section>"
        for title, caption, head, rows, numbers in found.tables
    )
    parts = [
        f'<header><div class="eyebrow"><span>offbeat study</span><strong>{escape(outcome.design)}</strong></div>'
        f'<h1>{escape(found.title)}</h1><p class="lead">{escape(found.lead)} {escape(sizes)}</p>{caution}</header>',
        section("What the declared rules say", f'<section class="card full"><ul>{verdicts}</ul></section>'),
        section("Figures", "".join(map(card, found.figures))),
        section("Numbers", tables),
    ]
    return document(f"study {escape(outcome.design)}", "".join(parts), "Intervals: bootstrap over seeds, 95 %.")
