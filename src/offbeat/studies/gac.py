"""Study `gac` (G1-G5): does projection rescue what staleness costs, and is it the direction that does it?

At S = 16, fixed lag, with sync beside it. *Declared*: an arm is judged at the study's *edge*, the largest learning rate
of the sweep, at which plain is to lose half of sync's best gain or more (the page says what it lost); GAC is `cap`; a
control explains GAC's gain where the 95 % interval of cap less control, paired by seed, holds 0 or lies below it.
"Best rate" is the best of the sweep for that arm. Recovery is final exact match over sync's at its best rate.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from offbeat.report.style import BLUE, GREEN, GREY, ORANGE, Figure, line, spec
from offbeat.studies.cell import Cell
from offbeat.studies.gac_figures import arms_figure, cosine_figure
from offbeat.studies.grid import Estimate, Sample, estimate, mean_gain, rates_at, seeds_of
from offbeat.studies.scales import SMOKE, STEPS, WHOLE
from offbeat.studies.study import Findings, Results, by_seed
from offbeat.theory.fits import interquartile_mean

STALENESS = 16
EDGE = 2e-4
"""Where the arms are compared: in a pilot of one seed plain had gained nothing there, and sync most of its best."""
RATES = {
    "sync": (1e-4, EDGE),
    "plain": (5e-5, 1e-4, EDGE),
    "cap": (1e-4, EDGE),
}
"""The sweep; every other arm runs at the edge only."""
SMOKE_ARMS = ("sync", "plain", "cap", "shrink only", "autopilot")
PROJECTED = {"c_low": 0.05, "c_high": 1.0}
ARMS: dict[str, dict[str, Any]] = {
    "cap": {"mode": "cap", **PROJECTED},
    "orth": {"mode": "orth", **PROJECTED},
    "cap, applied reference": {"mode": "cap", "reference": "applied", **PROJECTED},
    "shrink only": {"mode": "cap", "direction": "none", **PROJECTED},
    "random direction": {"mode": "cap", "direction": "random", **PROJECTED},
}
CONTROLS = ("shrink only", "random direction")
RECOVERED = 0.8
SIGNATURE = 2.0


class GacStudy:
    name = "gac"

    def cells(self, seeds: int, smoke: bool) -> list[Cell]:
        steps, scale = (40, SMOKE) if smoke else (STEPS, WHOLE)
        arms = SMOKE_ARMS if smoke else ("sync", "plain", "autopilot", *ARMS)
        wanted = [(arm, rate) for arm in arms for rate in ((EDGE,) if smoke else RATES.get(arm, (EDGE,)))]
        return by_seed(
            [
                Cell(self.name, "train", arm, seed, age(arm), "fixed-lag", rate, steps, scale, options_of(arm))
                for seed in range(seeds)
                for arm, rate in wanted
            ]
        )

    def findings(self, results: Results, smoke: bool) -> Findings:
        seeds = seeds_of(results)
        edge = EDGE
        arms = [arm for arm, s, rate in seeds[0] if rate == edge and s == STALENESS]
        finals = {arm: estimate(seeds, partial(final, arm=arm, rate=edge), f"final {arm}") for arm in arms}
        for arm in ("sync", "plain"):
            finals[f"{arm} (best rate)"] = estimate(seeds, partial(best_final, arm=arm), f"final {arm}")
        versus = {
            arm: estimate(seeds, partial(cap_less, arm=arm, rate=edge), f"cap less {arm}")
            for arm in arms
            if arm != "cap"
        }
        best = {"cap": estimate(seeds, partial(best_less_plain, arm="cap"), "best cap")}
        at_edge = {
            arm: estimate(seeds, partial(edge_less_plain, arm=arm), f"edge {arm}") for arm in ("cap", "autopilot")
        }
        recovery = {arm: estimate(seeds, partial(recovered, arm=arm, rate=edge), f"recovery {arm}") for arm in arms}
        lost = estimate(seeds, share_lost, "lost")
        signature = {
            arm: estimate(seeds, partial(cosine, key=(arm, 0 if arm == "sync" else STALENESS, edge)), f"cosine {arm}")
            for arm in ("sync", "plain", "cap")
        }
        values: dict[str, Any] = {"edge": edge, "staleness": STALENESS, "share_lost": lost.to_json()}
        for name, group in (
            ("final", finals), ("cap_less", versus), ("best_rate_less_plain", best),
            ("at_the_edge_less_best_plain", at_edge), ("recovery", recovery), ("cosine", signature),
        ):  # fmt: skip
            values[name] = {arm: one.to_json() for arm, one in group.items()}
        values["regimes"] = {arm: regimes(seeds, (arm, STALENESS, edge)) for arm in arms if arm in ARMS}
        verdicts = [
            signature_verdict(signature),
            f"At the edge plain loses {lost.shown('.0%')} of sync's best gain (wanted: at least half).",
            *(recovery_verdict(arm, recovery[arm], at_edge[arm]) for arm in ("cap", "autopilot")),
            *explanations(versus, best),
        ]
        lead = (
            f"Seeds: {len(seeds)}; S = {STALENESS} publishes (one optimizer update each), fixed lag, judged at the"
            f" edge η = {edge:g}. Final: expected exact match on held-out prompts at the end, IQM over seeds."
        )
        rows = [
            [one.shown(".3f"), versus[arm].shown("+.3f") if arm in versus else "", arm] for arm, one in finals.items()
        ]
        table = ("At the edge", "IQM over seeds with 95 % intervals; differences paired by seed.",
                 ["final exact match", "cap less this", "arm"], rows, 2)  # fmt: skip
        figures = [arms_figure(finals), _sweep(seeds), cosine_figure(seeds, edge, STALENESS)]
        return Findings("Gradient alignment control against its controls", lead, values, verdicts, figures, [table])


def age(arm: str) -> int:
    """The staleness of an arm's data."""
    return 0 if arm == "sync" else STALENESS


def options_of(arm: str) -> dict[str, Any]:
    """What its cells are asked to do."""
    return {"autopilot": True} if arm == "autopilot" else {"align": ARMS[arm]} if arm in ARMS else {}


def final(sample: Sample, arm: str, rate: float) -> float:
    """IQM over seeds of the final exact match."""
    return interquartile_mean([seed[arm, age(arm), rate].final for seed in sample])


def cap_less(sample: Sample, arm: str, rate: float) -> float:
    """IQM over seeds of what cap ends above another arm at this rate, seed by seed."""
    differences = [seed["cap", STALENESS, rate].final - seed[arm, STALENESS, rate].final for seed in sample]
    return interquartile_mean(differences)


def best_less_plain(sample: Sample, arm: str) -> float:
    """Each at its own best rate of the sweep."""
    return best_final(sample, arm) - best_final(sample, "plain")


def edge_less_plain(sample: Sample, arm: str) -> float:
    """An arm at the edge less plain at its best rate."""
    return final(sample, arm, EDGE) - best_final(sample, "plain")


def share_lost(sample: Sample) -> float:
    """Of the best gain of sync, what plain does not gain at the edge. ValueError where sync gained nothing."""
    best = max(mean_gain(sample, "sync", 0, rate) for rate in rates_at(sample, "sync", 0))
    if best <= 0:
        raise ValueError("sync gained nothing")
    return 1 - mean_gain(sample, "plain", STALENESS, EDGE) / best


def recovered(sample: Sample, arm: str, rate: float) -> float:
    """Final exact match at this rate over that of sync at its best. ValueError where that is 0."""
    best = best_final(sample, "sync")
    if best <= 0:
        raise ValueError("sync ended at 0")
    return final(sample, arm, rate) / best


def best_final(sample: Sample, arm: str) -> float:
    """That at the arm's own best rate of the sweep."""
    return max(final(sample, arm, rate) for rate in rates_at(sample, arm, age(arm)))


def cosine(sample: Sample, key: tuple[str, int, float]) -> float:
    """Mean lag-1 cosine of raw gradients. ValueError where no step has one."""
    found = [value for value in (seed[key].cosine() for seed in sample) if value is not None]
    if not found:
        raise ValueError("no cosine")
    return fmean(found)


def regimes(sample: Sample, key: tuple[str, int, float]) -> dict[str, float]:
    """Share of steps in each regime of the control, mean over seeds."""
    shares = [seed[key].values["control"]["regimes"] for seed in sample]
    return {name: fmean(share.get(name, 0.0) for share in shares) for name in sorted({n for s in shares for n in s})}


def signature_verdict(found: dict[str, Estimate]) -> str:
    sync, plain, cap = (found[name] for name in ("sync", "plain", "cap"))
    words = f"lag-1 cosine: sync {sync.shown('.3f')}, plain {plain.shown('.3f')}, cap {cap.shown('.3f')}"
    if sync.value is None or sync.interval is None or plain.value is None or plain.interval is None:
        return f"Signature: cannot be said; {words}."
    doubled = plain.value >= SIGNATURE * sync.value and plain.interval.low > sync.interval.high
    return f"Signature: stale gradients are {'' if doubled else 'not '}twice as aligned, intervals apart; {words}."


def recovery_verdict(arm: str, found: Estimate, ahead: Estimate) -> str:
    if found.value is None:
        return f"{arm}: recovery cannot be said."
    word = "recovers" if found.value >= RECOVERED else "does not recover"
    return (
        f"At the edge {arm} {word} {RECOVERED:.0%} of sync's best final exact match: {found.shown('.2f')}; it ends"
        f" {ahead.shown('+.3f')} from plain at the best fixed rate."
    )


def explanations(versus: dict[str, Estimate], best: dict[str, Estimate]) -> list[str]:
    """Whether there is a gain, and which control explains it, by the declared rule; the last line is about the best
    fixed rate."""
    over_plain = versus["plain"]
    shown = over_plain.shown("+.3f")
    if over_plain.is_positive:
        found = [f"At the edge cap beats plain: {shown}."]
        for control in (name for name in CONTROLS if name in versus):
            verb = "does not explain" if versus[control].is_positive else "explains"
            found.append(f"'{control}' {verb} cap's gain at the edge: cap less it {versus[control].shown('+.3f')}.")
    else:
        found = [f"At the edge cap does not beat plain ({shown}): there is no gain for a control to explain."]
    lower = best["cap"]
    ahead, verb = ("is", "does not explain") if lower.is_positive else ("is not", "explains")
    words = f"At the best rate of each cap {ahead} ahead of plain, {lower.shown('+.3f')}"
    return [*found, f"{words}: a lower fixed learning rate {verb} what it gains."]


def _sweep(seeds: Sample) -> Figure:
    traces, every = [], sorted({rate for _, _, rate in seeds[0]})
    for arm, colour in (("sync", GREEN), ("plain", GREY), ("cap", BLUE), ("autopilot", ORANGE)):
        rates = rates_at(seeds, arm, age(arm))
        values = [final(seeds, arm, rate) for rate in rates]
        traces.append(line(rates, values, arm, colour, "%{y:.3f}", mode="lines+markers"))
    chart = spec(traces, "η", "final exact match", xaxis_type="log", xaxis_tickvals=every)
    return Figure("sweep", "Final exact match over learning rate", f"IQM over seeds, S = {STALENESS}.", chart)
