"""A run in one flat object: what `offbeat train --json` prints, and the same in a few closing words for people.

*Null rule*: a value that does not exist yet is None, never 0. Derived from the log alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from offbeat import events as e
from offbeat.report.audit import Audit, audit
from offbeat.report.figures_autopilot import levers
from offbeat.report.read import Run
from offbeat.report.story import Story, tell
from offbeat.report.tally import clock

REPORT_NAME = "report.html"


def summary(run: Run, audited: Audit | None = None) -> dict[str, Any]:
    """What `offbeat train --json` prints; give the audit if there is one already. Rates are per second of run time.

    Keys: run, outcome, iterations, version, exact_match_before, exact_match_after (greedy, of version 0 and of the
    newest version evaluated), exact_match_sampled_before, exact_match_sampled_after, trajectories (consumed),
    trajectories_per_second, tokens_per_second (prompt and response tokens of consumed trajectories; the seconds run
    from the first Generate to the last Trained), staleness {mean, max, bound} in publishes (bound None where the
    schedule promises none), stability (None before the first iteration and in
    logs without instruments; its keys are those of records.Instruments, over all iterations: policy_lag_kl,
    effective_sample_size, clip_share and g_upd as means, drift_from_start and drift_exponent at the end, cycle_drift as
    the largest), mismatch (see `mismatch`), autopilot (None where it is off; see
    `autopilot`), lost, consumed_twice (trajectories), wall_seconds, report.
    """
    audited = audited or audit(run)
    story = tell(run)
    before, after = before_and_after(story)
    trajectories, stale = audited.trajectories, audited.staleness
    tokens = consumed_tokens(run, story)
    seconds = working_seconds(run)
    report = report_path(run.directory, None)
    return {
        "run": str(run.directory),
        "outcome": story.outcome,
        "iterations": len(story.consumptions),
        "version": max((trained.version for _, _, trained in story.publishes), default=0),
        "exact_match_before": before.exact_match_greedy if before else None,
        "exact_match_after": after.exact_match_greedy if after else None,
        "exact_match_sampled_before": before.exact_match_sampled if before else None,
        "exact_match_sampled_after": after.exact_match_sampled if after else None,
        "trajectories": trajectories,
        "trajectories_per_second": trajectories / seconds if seconds else None,
        "tokens_per_second": tokens / seconds if seconds and tokens is not None else None,
        "staleness": {
            "mean": stale.mean if trajectories else None,
            "max": stale.max if trajectories else None,
            "bound": stale.bound if "c3" in audited.promised else None,
        },
        "stability": stability(story),
        "mismatch": mismatch(story),
        "autopilot": autopilot(run, story),
        "lost": audited.breaches["lost"],
        "consumed_twice": audited.breaches["consumed_twice"],
        "wall_seconds": run.wall_seconds if run.records else None,
        "report": str(report) if report.is_file() else None,
    }


def stability(story: Story) -> dict[str, float | None] | None:
    """The instruments of a run in one object; a value that was never measured is None."""
    reports = [trained.report for _, _, trained in story.publishes if trained.report.instruments is not None]
    if not reports:
        return None
    measured = [report.instruments for report in reports if report.instruments is not None]
    sizes = [each.effective_sample_size for each in measured if each.effective_sample_size is not None]
    norms = [each.g_upd for each in measured if each.g_upd is not None]
    cycles = [each.cycle_drift for each in measured if each.cycle_drift is not None]
    return {
        "policy_lag_kl": fmean(report.policy_lag_kl for report in reports),
        "effective_sample_size": fmean(sizes) if sizes else None,
        "clip_share": fmean(report.clip_share for report in reports),
        "g_upd": fmean(norms) if norms else None,
        "drift_from_start": measured[-1].drift_from_start,
        "drift_exponent": measured[-1].drift_exponent,
        "cycle_drift": max(cycles, default=None),
    }


def autopilot(run: Run, story: Story) -> dict[str, Any] | None:
    """Where its levers stand at the end, and each move: the version after which, lever, before, after, reason."""
    stand = levers(run, story)
    if stand is None:
        return None
    moves = [
        {"version": s.version, "lever": s.lever, "before": s.before, "after": s.after, "reason": s.reason}
        for _, s in story.steers
    ]
    return {"levers": stand, "moves": moves}


def mismatch(story: Story) -> dict[str, Any] | None:
    """behaviour against target split into engine error and policy lag, in nats: of each iteration's measured tokens
    the mean, the 99th percentile and the share beyond 0.1, and of these the means weighted by tokens; None where never
    measured."""
    found = [trained.report.mismatch for _, _, trained in story.publishes if trained.report.mismatch is not None]
    tokens = sum(each.tokens for each in found)
    if not tokens:
        return None

    def over(part: str) -> dict[str, float]:
        gaps = [(each.tokens, getattr(each, part)) for each in found]
        return {
            name: sum(count * getattr(gap, name) for count, gap in gaps) / tokens for name in ("mean", "p99", "beyond")
        }

    return {"tokens": tokens, "engine_error": over("engine_error"), "policy_lag": over("policy_lag")}


def before_and_after(story: Story) -> tuple[e.Evaluated | None, e.Evaluated | None]:
    """The evaluation of version 0, and the one of the newest version evaluated after it."""
    results = {evaluated.version: evaluated for _, evaluated in story.evaluations}
    newest = max(results, default=0)
    return results.get(0), results[newest] if newest > 0 else None


def working_seconds(run: Run) -> float | None:
    """From the first Generate to the last Trained; None while one of them is missing or no time lies between."""
    generates = (r.now for r in run.records if any(isinstance(command, e.Generate) for command in r.commands))
    first = next(generates, None)
    last = next((r.now for r in reversed(run.records) if isinstance(r.event, e.Trained)), None)
    return last - first if first is not None and last is not None and last > first else None


def consumed_tokens(run: Run, story: Story) -> int | None:
    """Prompt and response tokens of what was trained on, a prompt once for each trajectory.

    None where a prompt or a payload is not stored.
    """
    total = 0
    for group_id, trajectory_id, attempt in _consumed(story):
        prompt, payload = run.prompts.get(group_id), run.payloads.get((trajectory_id, attempt))
        if prompt is None or payload is None:
            return None
        total += prompt.tokens + payload.tokens
    return total


def _consumed(story: Story) -> Iterator[tuple[int, int, int]]:
    """(group_id, trajectory_id, attempt) of every trajectory trained on, each once."""
    seen: set[int] = set()
    for batch in story.consumptions:
        for group_id, attempts in zip(batch.train.group_ids, batch.train.attempts, strict=False):
            if group_id not in seen:
                seen.add(group_id)
                for trajectory_id, attempt in zip(story.members(group_id), attempts, strict=False):
                    yield group_id, trajectory_id, attempt


def report_path(run_directory: Path, out: Path | None) -> Path:
    """Where the page goes: `out`, or report.html in the run directory."""
    return out or run_directory / REPORT_NAME


def closing_words(result: Mapping[str, Any]) -> str:
    """The summary for people: what improved, how fast, how stale, and where the report lies."""
    lines = _improvement(result)
    seconds = result["wall_seconds"]
    done = f"{result['iterations']} iterations, {result['trajectories']} trajectories"
    lines.append(done + (f" in {clock(seconds)}" if seconds is not None else ""))
    speed, tokens = result["trajectories_per_second"], result["tokens_per_second"]
    if speed is not None:
        lines.append(f"{speed:.1f} trajectories/s" + (f", {tokens:,.0f} tokens/s" if tokens is not None else ""))
    stale = result["staleness"]
    if stale["mean"] is not None:
        bound = "no bound" if stale["bound"] is None else f"bound {stale['bound']}"
        lines.append(f"staleness mean {stale['mean']:.2f}, max {stale['max']}, {bound}")
    if result["lost"] or result["consumed_twice"]:
        broken = f"{result['lost']} lost, {result['consumed_twice']} consumed twice"
        lines.append(f"C2 IS BROKEN: {broken}; look into it with: offbeat verify {result['run']}")
    if result["report"]:
        lines.append(f"report: {result['report']}")
    return "\n".join(lines)


def _improvement(result: Mapping[str, Any]) -> list[str]:
    before, after = result["exact_match_before"], result["exact_match_after"]
    if before is None and after is None:
        return []
    if before is None:
        return [f"held-out exact match {after:.3f} after training"]
    if after is None:
        return [f"held-out exact match {before:.3f} before training"]
    sampled = f"{result['exact_match_sampled_before']:.3f} -> {result['exact_match_sampled_after']:.3f}"
    return [f"held-out exact match {before:.3f} -> {after:.3f} ({after - before:+.3f}); sampled {sampled}"]
