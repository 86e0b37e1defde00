"""The parts of the page that are words and tables: header, audit, incidents, responses, settings. Escapes all text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from offbeat.report.audit import Audit
from offbeat.report.incidents import incident_rows
from offbeat.report.laws import LAWS, SENTENCES, Law
from offbeat.report.read import Run, read_trajectories
from offbeat.report.story import Consumption, Story
from offbeat.report.style import Figure
from offbeat.settings import Settings

INCIDENTS_SHOWN = 300
RESPONSES_SHOWN = 4


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float | None) -> str:
    """45 s, 3 min 20 s, 2 h 05 min."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def header(run: Run, result: dict[str, Any], audited: Audit) -> str:
    """What the run achieved, in one line, one sentence and a row of numbers."""
    before, after = result["exact_match_before"], result["exact_match_after"]
    iterations, outcome = result["iterations"], result["outcome"]
    if before is not None and after is not None:
        title = f"Held-out exact match {percent(before)} → {percent(after)}"
    elif iterations:
        title = f"{iterations} iterations trained, not evaluated since"
    else:
        title = "Nothing trained yet"
    created = run.meta.get("created", "").replace("T", " ")[:16]
    task = run.settings.task
    lead = (
        f"{iterations} of {run.settings.learner.iterations} iterations on {task.name}, schedule"
        f" {run.settings.schedule.name}, in {duration(run.wall_seconds)} of run time."
    )
    if audited.trajectories:
        lead += (
            f" {audited.trajectories:,} trajectories were trained on, {_sampled_by(audited)}, up to"
            f" {audited.staleness.max} publishes earlier ({_bound(audited)})."
        )
    stop = _last_words(run)
    return f"""<header>
<div class="eyebrow"><span>offbeat run</span><strong>{escape(run.directory.resolve().name)}</strong>
<span>{escape(created)}</span><span class="badge {escape(outcome)}">{escape(outcome)}</span></div>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}{f" {escape(stop)}" if stop else ""}</p>
<div class="tiles">{"".join(_tiles(run, result, audited))}</div>
</header>"""


def _sampled_by(audited: Audit) -> str:
    if "c1" in audited.promised:
        return "each sampled by one version"
    spans = audited.spans_per_trajectory
    return f"sampled in {spans:.2f} spans each on average" if spans and spans > 1 else "each in one span"


def _bound(audited: Audit) -> str:
    return f"bound {audited.staleness.bound}" if "c3" in audited.promised else "no bound promised"


def _last_words(run: Run) -> str:
    """Why a run that did not finish has ended."""
    for record in reversed(run.records):
        for command in record.commands:
            reason = getattr(command, "outcome", "finished") != "finished" and getattr(command, "reason", "")
            if reason:
                return f"It stopped early: {reason}."
        if type(record.event).__name__ == "Opened":
            break
    return ""


def _tiles(run: Run, result: dict[str, Any], audited: Audit) -> Iterable[str]:
    def tile(name: str, value: str, note: str, kind: str = "") -> str:
        return (
            f'<div class="tile {kind}"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
            f'<div class="note">{escape(note)}</div></div>'
        )

    for how, key in (("greedy", "exact_match"), ("sampled", "exact_match_sampled")):
        yield tile(f"exact match, {how}", *_change(result[f"{key}_before"], result[f"{key}_after"]))
    rate, tokens = result["trajectories_per_second"], result["tokens_per_second"]
    note = f"{tokens:,.0f} tokens/s, prompts included" if tokens else ""
    yield tile("trajectories per second", f"{rate:.1f}" if rate else "–", note)
    stale = audited.staleness
    if audited.trajectories:
        yield tile("mean staleness", f"{stale.mean:.2f}", f"max {stale.max}, {_bound(audited)}")
    else:
        yield tile("mean staleness", "–", _bound(audited))
    yield tile("versions published", str(audited.versions), f"in {duration(run.wall_seconds)} of run time")
    kept = [name for name, law in (("C1", "c1"), ("C2", "lost"), ("C3", "c3")) if law in audited.promised]
    name = f"constraints {', '.join(kept)}" if len(kept) > 1 else f"constraint {kept[0]}"
    if audited.ok and not audited.conservation.issued:
        yield tile(name, "–", "nothing was issued yet")
        return
    broken = sum(audited.breaches[law] for law in audited.broken)
    lost = f"{audited.breaches['lost']} lost, {audited.breaches['consumed_twice']} used twice"
    verdict = "kept" if audited.ok else f"{broken} broken"
    yield tile(name, verdict, lost, "good" if audited.ok else "bad")


def _change(before: float | None, after: float | None) -> tuple[str, str]:
    """A number on held-out prompts before and after, and a note on the difference."""
    if before is not None and after is not None:
        return f"{100 * before:.1f} → {percent(after)}", f"{100 * (after - before):+.1f} points"
    if before is None and after is None:
        return "–", "not evaluated yet"
    return percent(before if after is None else after), "before training" if after is None else "after training"


def card(figure: Figure) -> str:
    """A figure's card; one sentence instead of the chart where the run has nothing to show yet."""
    head = f'<h3>{escape(figure.title)}</h3><p class="caption">{escape(figure.caption)}</p>'
    if figure.spec is None:
        return f'<section class="card {figure.size}">{head}<p class="nothing">Nothing to show yet.</p></section>'
    name = escape(figure.name)
    data = f'<script type="application/json" id="figure-{name}">{embedded(figure.spec)}</script>'
    return (
        f'<section class="card {figure.size}">{head}<div class="plot" id="{name}" role="img"'
        f' aria-label="{escape(figure.title)}" data-figure="figure-{name}"></div>{data}</section>'
    )


def embedded(json: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.replace("<", "\\u003c")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table of escaped cells; the first `numbers` columns are aligned as numbers."""

    def cell(tag: str, i: int, text: str) -> str:
        return f'<{tag} class="{"number" if i < numbers else "words"}">{escape(text)}</{tag}>'

    top = "".join(cell("th", i, text) for i, text in enumerate(head))
    body = "".join(f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def audit_section(audited: Audit) -> str:
    """Every law with its number of breaches, and the evidence for those promised and broken."""
    rows = "".join(
        f'<tr><td>{escape(audited.sentence(law))}</td><td class="number {_count_class(audited, law)}">'
        f"{audited.breaches[law]}</td></tr>"
        for law in LAWS
    )
    c = audited.conservation
    sums = (
        f"{c.issued:,} issued = {c.live:,} live + {c.consumed:,} consumed + {c.quarantined:,} quarantined"
        f"{f' + {c.evicted:,} evicted' if c.evicted else ''}"
        f"{'' if c.holds else ': does not add up'}."
    )
    lengths = audited.lengths
    if lengths.trained is not None and lengths.finished is not None:
        sums += f" Mean length {lengths.trained:.1f} tokens trained on, {lengths.finished:.1f} finished."
    evidence = "".join(
        f"<h3>{escape(SENTENCES[law])}</h3><pre>{escape(chr(10).join(audited.evidence[law]))}</pre>"
        for law in audited.broken
    )
    return f"""<section class="card full"><h3>Audit</h3>
<p class="caption">Told again from the log alone, by code that shares nothing with the scheduler. {escape(sums)}</p>
<table><thead><tr><th>law</th><th class="number">breaches</th></tr></thead><tbody>{rows}</tbody></table>
{evidence}</section>"""


def _count_class(audited: Audit, law: Law) -> str:
    if law not in audited.promised:
        return "unpromised"
    return "broken" if audited.breaches[law] else "zero"


def incident_section(run: Run) -> str:
    """Restarts, expired leases, losses, quarantines, what the autopilot moved, resumes, and how the run ended."""
    rows = incident_rows(run)
    caption = (
        "Losses, restarts, quarantines, levers moved, resumes and the end, with the event's number in the run log."
    )
    body = '<p class="nothing">Nothing out of the ordinary.</p>'
    if rows:
        kinds = Counter(what for _, _, what, _ in rows)
        caption += f" {'; '.join(f'{what} ×{count}' if count > 1 else what for what, count in kinds.most_common())}."
        shown = [(f"{now:.2f}", str(seq), what, detail) for now, seq, what, detail in rows]
        if len(shown) > INCIDENTS_SHOWN:
            half = INCIDENTS_SHOWN // 2
            shown = [*shown[:half], ("…", "…", "…", f"{len(shown) - 2 * half:,} more"), *shown[-half:]]
        body = table(("run time (s)", "seq", "what", "detail"), shown, numbers=2)
    return f'<section class="card full"><h3>Incidents</h3><p class="caption">{escape(caption)}</p>{body}</section>'


def response_section(run: Run, story: Story) -> str:
    """A few responses of the first and of the last batch, with their rewards."""
    if not story.consumptions:
        return ""
    parts = []
    batches = {"first batch": story.consumptions[0], "last batch": story.consumptions[-1]}
    for name, batch in batches.items():
        rows = _responses(run, story, batch)
        if rows:
            caption = f"Sampled for iteration {batch.iteration}, one response for each of the first prompts."
            shown = table(("reward", "prompt", "response", "answer"), rows, numbers=1)
            head = f'<h3>Responses in the {name}</h3><p class="caption">{caption}</p>'
            parts.append(f'<section class="card half">{head}{shown}</section>')
    return "".join(parts)


def _responses(run: Run, story: Story, batch: Consumption) -> list[tuple[str, str, str, str]]:
    pairs = zip(batch.train.group_ids, batch.train.attempts, strict=False)
    keys = [(story.members(group_id)[0], attempts[0]) for group_id, attempts in pairs if attempts]
    keys = [k for k in keys if k in run.payloads and k[0] // story.group_size in run.prompts][:RESPONSES_SHOWN]
    rows = []
    for (trajectory_id, _), trajectory in zip(keys, read_trajectories(run, keys), strict=True):
        prompt = run.prompts[trajectory_id // story.group_size]
        scores = story.scores.get(trajectory_id)
        reward = f"{scores[0][1]:.2f}" if scores else "–"
        rows.append((reward, _short(prompt.text), _short(trajectory.text), _short(prompt.answer)))
    return [row for row in rows if row[2]]


def _short(text: str, limit: int = 240) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def settings_section(settings: Settings) -> str:
    """All settings, those that differ from the defaults in bold."""
    usual = {section: _flat(values) for section, values in Settings().model_dump(mode="json").items()}
    parts = []
    for section, nested in settings.model_dump(mode="json").items():
        values = _flat(nested)
        rows = "".join(
            f'<tr class="{"" if key in usual[section] and usual[section][key] == value else "changed"}">'
            f"<td>{escape(key)}</td><td>{escape('' if value is None else str(value))}</td></tr>"
            for key, value in values.items()
        )
        parts.append(f"<div><h3>{escape(section)}</h3><table><tbody>{rows}</tbody></table></div>")
    return (
        '<section class="card full"><p class="caption">Bold: not the default.</p>'
        f'<div class="settings">{"".join(parts)}</div></section>'
    )


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """A section with the keys of tables in it spelled out: {"objective": {"name": "grpo"}} has "objective.name"."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= {f"{key}.{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {key: value}
    return found
