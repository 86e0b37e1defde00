"""Study `collapse` (L2, L3): when do runs beyond the edge collapse, and what do gradients say before they do?

Rates beyond the edge at two stalenesses, and safe rates beside them. *Declared*: collapse by the criterion of
`theory.collapse`, T_c the version whose samples show it first (those of a batch are S old); the law predicts a slope of
log T_c on log eta of -1 at fixed S (held within 0.25), and T_c eta independent of S (held where the 95 % interval of
the ratio of geometric means between the two S holds 1). Only rates at which every seed collapsed count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

from offbeat.report.style import BLUE, GREEN, ORANGE, RED, ROUND, Figure, faint, line, spec
from offbeat.studies.cell import Cell
from offbeat.studies.grid import Estimate, Sample, Trained, estimate, rates_at, seeds_of
from offbeat.studies.scales import SMOKE, STEPS, WHOLE
from offbeat.studies.study import Findings, Results, by_seed
from offbeat.studies.two_constraint import TOLERANCE
from offbeat.theory.collapse import moving_mean
from offbeat.theory.fits import median, power_law

ARM = "plain"
STALENESSES = (4, 16)
SAFE = (1e-4,)
FAST = (4e-4, 6e-4, 8e-4, 1.2e-3)
"""Beyond the edge. These runs end once their collapse is settled. Four times as fast, policies were gone with the first
updates at every rate, which says nothing about a rate."""
LONGEST = 600
"""Updates that a run beyond the edge has to collapse in."""
FIRST_STEPS = 10
"""Steps before which a drift has no exponent yet."""
ALARM = 0.5
"""Cosine that the literature calls a practical alarm."""


class CollapseStudy:
    name = "collapse"

    def cells(self, seeds: int, smoke: bool) -> list[Cell]:
        scale = SMOKE if smoke else WHOLE
        safe, fast = (40, 40) if smoke else (STEPS, LONGEST)
        runs: dict[float, tuple[int, dict[str, bool]]] = {rate: (safe, {}) for rate in SAFE}
        runs |= {rate: (fast, {"until_collapse": True}) for rate in (FAST[-1:] if smoke else FAST)}
        return by_seed(
            [
                Cell(self.name, "train", ARM, seed, s, "fixed-lag", rate, steps, scale, options)
                for seed in range(seeds)
                for s in STALENESSES
                for rate, (steps, options) in runs.items()
            ]
        )

    def findings(self, results: Results, smoke: bool) -> Findings:
        seeds = seeds_of(results)
        runs = [run for seed in seeds for run in seed.values()]
        values: dict[str, Any] = {"runs": [_row(run) for run in runs]}
        verdicts = []
        rates = {s: rates_of_collapse(seeds, s) for s in STALENESSES}
        for s in STALENESSES:
            slope = estimate(seeds, partial(time_slope, staleness=s, rates=rates[s]), f"slope {s}")
            values[f"slope_collapse_time_staleness_{s}"] = slope.to_json()
            verdicts.append(_slope_verdict(s, slope))
        low, high = (set(found) for found in rates.values())
        ratio = estimate(seeds, partial(product_ratio, rates=sorted(low & high)), "ratio")
        values["collapse_product_ratio"] = ratio.to_json()
        verdicts.append(_ratio_verdict(ratio))
        alarm = estimate(seeds, cosine_difference, "cosine")
        values["cosine_collapsing_less_stable"] = alarm.to_json()
        verdicts.append(_cosine_verdict(alarm))
        gamma = estimate(seeds, safe_drift, "drift")
        values["drift_exponent_safe"] = gamma.to_json()
        verdicts.append(_drift_verdict(gamma))
        fell = sum(run.collapse_step is not None for run in runs)
        lead = f"Seeds: {len(seeds)}, fixed lag; {fell} of {len(runs)} runs collapsed by the declared criterion."
        head = ["S", "η", "collapsed", "T_c (median)", "T_c·η (median)", "cosine", "drift exponent"]
        table = ("Runs", "Medians over seeds; cosine of consecutive raw gradients and drift up to the collapse.", head,
                 _rows(seeds), 7)  # fmt: skip
        figures = [_times_figure(runs), _rewards(seeds), _cosines(seeds)]
        return Findings("When runs beyond the edge collapse", lead, values, verdicts, figures, [table])


def drift_exponent(run: Trained) -> float | None:
    """The slope of log ||theta_t - theta_0|| on log t up to the collapse: 1 ballistic, 0.5 diffusive."""
    drift = run.values["drift"][: run.collapse_time]
    if len(drift) < 2 * FIRST_STEPS:
        return None
    times = range(FIRST_STEPS, len(drift) + 1)
    return power_law(list(times), drift[FIRST_STEPS - 1 :]).slope


def drift_at_collapse(run: Trained) -> float | None:
    """R_crit of this run: ||theta_t - theta_0|| at its collapse, None where it did not."""
    drift = run.values["drift"]
    return drift[min(run.collapse_time, len(drift)) - 1] if run.collapse_time is not None and drift else None


def rates_of_collapse(seeds: Sample, staleness: int) -> list[float]:
    """The rates at which every seed collapsed: where some last, the slow ones would be missed."""
    rates = rates_at(seeds, ARM, staleness)
    return [rate for rate in rates if all(seed[ARM, staleness, rate].collapse_time is not None for seed in seeds)]


def _times(sample: Sample, staleness: int, rates: Sequence[float]) -> list[tuple[float, float]]:
    """(eta, T_c) of the runs at this staleness and these rates."""
    found = [(rate, seed[ARM, staleness, rate].collapse_time) for seed in sample for rate in rates]
    return [(rate, float(time)) for rate, time in found if time is not None]


def time_slope(sample: Sample, staleness: int, rates: Sequence[float]) -> float:
    """The exponent of T_c in eta. ValueError for fewer than two rates."""
    points = _times(sample, staleness, rates)
    if len(rates) < 2:
        raise ValueError("fewer than two rates collapse")
    return power_law([eta for eta, _ in points], [time for _, time in points]).slope


def product_ratio(sample: Sample, rates: Sequence[float]) -> float:
    """Geometric mean of T_c eta at the larger staleness over that at the smaller. ValueError for no rates."""
    if not rates:
        raise ValueError("no rate collapsed at both stalenesses")
    low, high = (_times(sample, s, rates) for s in STALENESSES)
    logs = [fmean(math.log(eta * time) for eta, time in points) for points in (low, high)]
    return math.exp(logs[1] - logs[0])


def cosine_difference(sample: Sample) -> float:
    """Mean cosine before the collapse of the runs that collapsed less that of those at a safe rate."""
    cosines: dict[bool, list[float]] = {True: [], False: []}
    for seed in sample:
        for run in seed.values():
            value = run.cosine()
            if value is not None and (run.collapse_time is not None or run.cell.learning_rate in SAFE):
                cosines[run.collapse_time is not None].append(value)
    if not all(cosines.values()):
        raise ValueError("runs of one kind are missing")
    return fmean(cosines[True]) - fmean(cosines[False])


def safe_drift(sample: Sample) -> float:
    """Median exponent of the drift of the runs at a safe rate. ValueError where none is long enough."""
    runs = [run for seed in sample for run in seed.values() if run.cell.learning_rate in SAFE]
    return median([gamma for gamma in map(drift_exponent, runs) if gamma is not None])


def _drift_verdict(gamma: Estimate) -> str:
    if gamma.value is None:
        return "Drift of the runs at a safe rate: too short for an exponent."
    return (
        f"Drift at the safe rate grows as t^{gamma.shown('.2f')}: 1 is ballistic, for which the slope of -1 is derived;"
        f" with this exponent the same threshold is reached with a slope of {-1 / gamma.value:.1f}."
    )


def _slope_verdict(staleness: int, slope: Estimate) -> str:
    if slope.value is None:
        return f"S = {staleness}: no slope of collapse time; all seeds collapsed at fewer than two rates."
    word = "as predicted" if abs(slope.value + 1) <= TOLERANCE else "not as predicted"
    return f"S = {staleness}: log T_c on log η has slope {slope.shown('.2f')}, {word} (-1 ± {TOLERANCE})."


def _ratio_verdict(ratio: Estimate) -> str:
    if ratio.interval is None:
        return "Whether T_c·η depends on S cannot be said: no rate collapsed at both stalenesses."
    word = "does not depend" if ratio.interval.holds(1.0) else "depends"
    low, high = STALENESSES
    return f"T_c·η {word} on S by the declared rule: at S = {high} it is {ratio.shown('.2f')} times that at S = {low}."


def _cosine_verdict(alarm: Estimate) -> str:
    if alarm.value is None or alarm.interval is None:
        return "Cosines of collapsing and stable runs cannot be compared: there are none of one kind."
    words = {True: "higher", False: "lower"}[alarm.value > 0] if not alarm.interval.holds(0.0) else "not different"
    return f"Before the collapse the lag-1 cosine is {words} than in stable runs: difference {alarm.shown('.3f')}."


def _row(run: Trained) -> dict[str, Any]:
    judged = run.collapse
    return {
        "staleness": run.cell.staleness,
        "eta": run.cell.learning_rate,
        "seed": run.cell.seed,
        "collapse_step": run.collapse_step,
        "collapse_time": run.collapse_time,
        "by_gradient": judged.by_gradient,
        "by_entropy": judged.by_entropy,
        "cosine": run.cosine(),
        "drift_exponent": drift_exponent(run),
        "drift_at_collapse": drift_at_collapse(run),
    }


def _rows(seeds: Sample) -> list[list[str]]:
    found = []
    for key in sorted(seeds[0]):
        runs = [seed[key] for seed in seeds]
        times = [run.collapse_time for run in runs if run.collapse_time is not None]
        cosines = [c for c in (run.cosine() for run in runs) if c is not None]
        exponents = [g for g in map(drift_exponent, runs) if g is not None]
        found.append(
            [str(key[1]), f"{key[2]:g}", f"{len(times)} of {len(runs)}"]
            + [f"{median(v):{form}}" if v else "–" for v, form in (
                (times, ".0f"), ([t * key[2] for t in times], ".3g"), (cosines, ".2f"), (exponents, ".2f")
            )]
        )  # fmt: skip
    return found


def _times_figure(runs: Sequence[Trained]) -> Figure:
    traces = []
    for s, colour in zip(STALENESSES, (BLUE, ORANGE), strict=True):
        points = [
            (run.cell.learning_rate, run.collapse_time)
            for run in runs
            if run.cell.staleness == s and run.collapse_time is not None
        ]
        traces.append(faint([x for x, _ in points], [y for _, y in points], f"S {s}", colour, "collapsed at %{y}"))
    chart = spec(traces, "η", "T_c", xaxis_type="log", yaxis_type="log", yaxis_tickvals=ROUND) if runs else None
    return Figure(
        "times", "Collapse time over learning rate", "Both axes logarithmic; the law is a slope of -1.", chart
    )


def _rewards(seeds: Sample) -> Figure:
    traces = []
    for (_, s, rate), run in sorted(seeds[0].items()):
        colour = RED if run.collapse_step is not None else GREEN
        smooth = moving_mean(run.values["reward"], 10)
        traces.append(line(list(range(len(smooth))), smooth, f"S {s}, η {rate:g}", colour, "%{y:.3f}", opacity=0.8))
    chart = spec(traces, "step", "reward", showlegend=False, hovermode="closest")
    return Figure("rewards", "Rewards of the first seed", "Mean of 10 steps; red: collapsed.", chart)


def _cosines(seeds: Sample) -> Figure:
    traces = []
    for (_, s, rate), run in sorted(seeds[0].items()):
        known = [c or 0.0 for c in run.values["cosine"]]
        colour = RED if run.collapse_step is not None else GREEN
        smooth = moving_mean(known, 10)
        traces.append(line(list(range(len(smooth))), smooth, f"S {s}, η {rate:g}", colour, "%{y:.3f}", opacity=0.8))
    traces.append(line([0, max(2, *(len(r.values["cosine"]) for r in seeds[0].values()))], [ALARM, ALARM], "alarm",
                       ORANGE, "alarm %{y}", line={"dash": "dot", "color": ORANGE, "width": 1}))  # fmt: skip
    chart = spec(traces, "step", "cosine", showlegend=False, hovermode="closest", yaxis_rangemode="normal")
    caption = "Consecutive raw gradients, mean of 10 steps, first seed; red: collapsed."
    return Figure("cosines", "Lag-1 cosines", caption, chart)
