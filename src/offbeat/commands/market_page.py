"""Report pages of the market: one self-contained HTML file; only puts figures and words together."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from offbeat.commands.market_figures import deviation_figures, gains_figure, shock_figure, signalling_figure
from offbeat.report.page import document, section, write_page
from offbeat.report.sections import card, table

if TYPE_CHECKING:
    from offbeat.market.audit.sessions import Findings
    from offbeat.market.diagnostics.battery import Tested
    from offbeat.market.equilibrium import Benchmark
    from offbeat.market.gain import NullGains

FOOTER = (
    "Profit gain: 0 at the Nash prices, 1 at the joint optimum. Intervals: 95 %, bootstrap over independent units"
    " (markets, or trainings)."
)


def audit_page(out: Path, found: Findings, benchmark: Benchmark, word: str, reasons: Sequence[str]) -> Path:
    """The page of an audit; returns where it is."""
    parts = [header("offbeat audit", found.target, f"Verdict: {word}", reasons), null_section(found.null_gains)]
    if found.panel:
        rows = [(a.rival, a.gain, a.nulls) for a in found.panel]
        parts.append(section("Against a panel of rivals", card(gains_figure(rows)) + _panel(found)))
    if found.self_response is not None:
        cards = deviation_figures(found.self_response, "own", "itself in the other seats")
        parts.append(section("It deviates from itself", "".join(map(card, cards))))
    if found.reaction is not None:
        cards = deviation_figures(found.reaction, "theirs", "the policy and the rivals left")
        parts.append(section("A rival deviates", "".join(map(card, cards))))
    parts.append(section("Conduct", _conduct(found)))
    nash, cartel = (", ".join(f"{p:.4f}" for p in end.prices) for end in (benchmark.nash, benchmark.cartel))
    return written(out, found.target, parts, f"{FOOTER} Nash prices {nash}; cartel prices {cartel}.")


def shock_page(out: Path, done: Tested) -> Path:
    """The page of `market shock`; returns where it is."""
    names = ", ".join(dict.fromkeys(done.names))
    parts = [
        header("offbeat market shock", names, f"Verdict: {done.verdict.word}", done.verdict.reasons),
        null_section(done.nulls),
        section("Forced deviation", "".join(map(card, deviation_figures(done.response, "deviation", "rivals")))),
        section("Learnt best responses", _exploited(done)),
        section("Demand shock and signalling", card(shock_figure(done.answer)) + card(signalling_figure(done.signals))),
    ]
    return written(out, names, parts, FOOTER)


def header(kind: str, name: str, title: str, reasons: Sequence[str]) -> str:
    """Title and the reasons for it."""
    items = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
    return (
        f'<header><div class="eyebrow"><span>{escape(kind)}</span><strong>{escape(name)}</strong></div>'
        f"<h1>{escape(title)}</h1><ul>{items}</ul></header>"
    )


def null_section(nulls: NullGains) -> str:
    """The null baselines, to stand beside every profit gain."""
    told = nulls.as_dict()
    body = table(list(told), [[f"{value:.3f}" for value in told.values()]], numbers=len(told))
    caption = "Profit gain of play that has learnt nothing, in this action box."
    return section("Null baselines", f'<section class="card full"><p class="caption">{caption}</p>{body}</section>')


def written(out: Path, title: str, parts: Sequence[str], footer: str) -> Path:
    """Write the page whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_page(out, document(escape(title), "".join(parts), escape(footer)))
    return out


def _panel(found: Findings) -> str:
    rows = [
        [
            str(a.gain),
            *(f"{null.mean:.3f}" for null in a.nulls.values()),
            f"{a.regret.regret:.4f}",
            f"{a.regret.share:.1%}" if a.regret.profit > 0 else "no profit",
            a.rival,
        ]
        for a in found.panel
    ]
    head = ["profit gain", *found.panel[0].nulls, "regret", "of profit", "rival"]
    return f'<section class="card full">{table(head, rows, numbers=len(head) - 1)}</section>'


def _exploited(done: Tested) -> str:
    rows = [[str(found.gained), str(found.present), f"firm {found.firm}"] for found in done.exploited]
    caption = (
        "Discounted profit over the episode; a search over affine reactions, hence a lower bound on what can be gained."
    )
    body = table(["gained", "present policy", "who learns"], rows, numbers=2)
    return f'<section class="card full"><p class="caption">{caption}</p>{body}</section>'


def _conduct(found: Findings) -> str:
    words = [f"Asked for {found.asked} prices; {found.outside} of them were outside the box and were clipped."]
    words += [f"{f.session}: {f.kind} at t = {f.time:.3g} ({f.detail})." for f in found.failures]
    words += [f"Not run after that: {', '.join(found.skipped)}."] if found.skipped else []
    return f'<section class="card full">{"".join(f"<p>{escape(w)}</p>" for w in words)}</section>'
