"""Finders: learning that has collapsed, or shows what comes before; steps that were not finite. Pure.

Whether a run has collapsed is decided by `theory.collapse` alone: its criterion was declared before any run was judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from offbeat.diagnosis.case import Case
from offbeat.diagnosis.finding import Evidence, Finding
from offbeat.diagnosis.timing import FEWEST
from offbeat.theory.collapse import Criterion, collapse, moving_mean

WINDOW = 8
"""Iterations a sign must hold on average."""
FEWEST_SAMPLE_SIZE = 0.3
LARGEST_KL = 0.05
ALARM_COSINE = 0.5
"""Of consecutive gradients: the alarm level of arXiv 2607.01083."""


def collapsed(case: Case) -> Iterator[Finding]:
    """The declared criterion, on the run's rewards."""
    rewards = [report.reward_mean for report in case.reports]
    step = collapse(rewards).step if rewards else None
    if step is None:
        return
    smooth, criterion = moving_mean(rewards, Criterion().window), Criterion()
    best = max(range(criterion.window - 1, step + 1), key=lambda i: smooth[i])
    seen = (
        Evidence(f"mean reward of {criterion.window} iterations at its best {smooth[best]:.3f}", smooth[best], best),
        Evidence(f"below half of that: {smooth[step]:.3f}", smooth[step], step),
        Evidence(f"now {smooth[-1]:.3f}", smooth[-1], len(rewards) - 1),
    )
    sentence = f"Learning collapsed at iteration {step}: the reward fell below half of its best and stayed there."
    yield Finding("collapse", "error", sentence, _steadier(case), seen)


def collapse_signature(case: Case) -> Iterator[Finding]:
    """What is seen before a collapse: stale samples that weigh nothing, drift, gradients that repeat themselves."""
    signs = [sign for sign in (_sample_size(case), _lag_kl(case), _cosine(case), *_spikes(case)) if sign]
    if signs:
        sentence = "Learning shows what comes before a collapse: " + "; ".join(sign.words for sign in signs) + "."
        yield Finding("collapse-signature", "warning", sentence, _steadier(case), tuple(signs))


def not_finite(case: Case) -> Iterator[Finding]:
    """Updates that were left out."""
    left_out = [report for report in case.reports if report.skipped_updates]
    if not left_out:
        return
    last = left_out[-1]
    count = sum(report.skipped_updates for report in left_out)
    seen = tuple(
        Evidence(f"{report.skipped_updates} left out", float(report.skipped_updates), report.iteration)
        for report in left_out[-3:]
    )
    again = last.consecutive_skips > 1 or count > 0.05 * len(case.reports) + 1
    sentence = f"{count} updates had a loss or gradient that is not finite; they were left out."
    remedy = "lower learner.learning_rate or learner.max_gradient_norm"
    yield Finding("not-finite", "warning" if again else "note", sentence, remedy, seen)


def _steadier(case: Case) -> str:
    settings = case.run.settings
    ways = ["lower learner.learning_rate (offbeat plan says how far)"]
    if settings.schedule.staleness_bound > 0:
        ways.append("lower schedule.max_staleness")
    if not settings.learner.autopilot and settings.learner.align.mode in ("off", "observe"):
        ways.append("set learner.align.mode = cap")
    if not settings.learner.controls_alignment:
        ways.append("set learner.autopilot = true")
    return ", ".join(ways[:-1]) + (" or " if len(ways) > 1 else "") + ways[-1]


def _recent(values: Sequence[float | None]) -> float | None:
    known = [value for value in values[-WINDOW:] if value is not None]
    return fmean(known) if len(known) >= WINDOW // 2 and len(values) >= FEWEST else None


def _sample_size(case: Case) -> Evidence | None:
    sizes = [r.instruments.effective_sample_size if r.instruments else None for r in case.reports]
    size = _recent(sizes)
    if size is None or size >= FEWEST_SAMPLE_SIZE:
        return None
    return Evidence(f"the effective sample size is {size:.2f} of a batch", size, case.reports[-1].iteration)


def _lag_kl(case: Case) -> Evidence | None:
    divergences = [report.policy_lag_kl for report in case.reports]
    now, before = _recent(divergences), divergences[:-WINDOW]
    if now is None or now < LARGEST_KL or (before and now < 5 * median(before)):
        return None
    words = f"behaviour and target are {now:.3g} nats a token apart"
    return Evidence(words, now, case.reports[-1].iteration)


def _cosine(case: Case) -> Evidence | None:
    cosine = _recent([report.alignment.cosine if report.alignment else None for report in case.reports])
    if cosine is None or cosine <= ALARM_COSINE:
        return None
    words = f"consecutive gradients point the same way (cosine {cosine:.2f})"
    return Evidence(words, cosine, case.reports[-1].iteration)


def _spikes(case: Case) -> Iterator[Evidence]:
    """Of the declared criterion, the rules that do not decide; of the entropy only its rise, for learning lowers it."""
    moved = [report for report in case.reports if report.gradient_norm > 0]
    if len(moved) < FEWEST:
        return
    found = collapse([0.0] * len(moved), [r.gradient_norm for r in moved], [r.entropy for r in moved])
    if found.by_gradient is not None:
        report = moved[found.by_gradient]
        yield Evidence(
            f"the gradient's norm jumped to {report.gradient_norm:.3g}", report.gradient_norm, report.iteration
        )
    if found.by_entropy is not None and moved[found.by_entropy].entropy > moved[0].entropy > 0:
        report = moved[found.by_entropy]
        yield Evidence(f"the entropy rose to {report.entropy:.3g}", report.entropy, report.iteration)
