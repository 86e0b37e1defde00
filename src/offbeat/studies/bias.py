"""Study `bias` (L4): is ||H(theta, phi) - H(theta, theta)|| linear in S at fixed eta, and in eta at fixed S?

Each cell follows cycles of a cyclic refresh from one phi (reached on-policy), one for each rate, and takes the bias at
several S, sampling only what has no closed form (`surrogate`). *Declared*: linear means a least-squares line with
R^2 >= 0.95, the median over rows of the grid; exponents of the power law are given beside it, for a curve can be
monotone and still have a high R^2. Where a quarter of the grid or more is below its noise, nothing is concluded.
The law is one of small steps: its rates keep theta near phi (larger ones, at which the bias levels off, are in
docs/stability.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from offbeat.report.style import BLUE, GREEN, OCHRE, ORANGE, RED, VIOLET, Figure, line, spec
from offbeat.studies.cell import Cell
from offbeat.studies.grid import Estimate, Point, estimate
from offbeat.studies.scales import SMOKE, WHOLE
from offbeat.studies.study import Findings, Results
from offbeat.theory.fits import Line, median, power_law, proportion, straight_line

KINDS = {"bias": "", "unclipped": " without the clip"}
"""What is judged: the bias of the surrogate as trained, and of the one without a clip; each by the declared rule."""
COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED, OCHRE)
LINEAR = 0.95
MOST_DROWNED = 0.25
"""Share of the grid below its noise from which on nothing is concluded."""
Squares = dict[Point, tuple[float, float]]
"""Squared bias and its standard error, by (S, eta)."""


class BiasStudy:
    name = "bias"

    def cells(self, seeds: int, smoke: bool) -> list[Cell]:
        rates = [2e-4, 4e-4] if smoke else [1e-6, 2e-6, 4e-6, 8e-6]
        stalenesses = [1, 2, 4] if smoke else [2, 4, 8, 16]
        approach, batches = (4, 3) if smoke else (60, 8)
        options = {
            "stalenesses": stalenesses,
            "rates": rates,
            "approach": approach,
            "approach_rate": 1e-4,
            "batches": batches,
            "groups": 8 if smoke else 256,
        }
        most, scale = stalenesses[-1], SMOKE if smoke else WHOLE
        steps = approach + most * len(rates)
        return [
            Cell(self.name, "bias", "cycle", seed, most, "cyclic", rates[-1], steps, scale, options)
            for seed in range(seeds)
        ]

    def findings(self, results: Results, smoke: bool) -> Findings:
        values: dict[str, Any] = {}
        verdicts: list[str] = []
        for kind, words in KINDS.items():
            found, said = _judged(_by_seed(results, kind), words)
            values |= {f"{name}_{kind}": value for name, value in found.items()}
            verdicts += said
        seeds, unclipped = (_by_seed(results, kind) for kind in KINDS)
        stalenesses, rates = _axes(seeds)
        share = _clip_share(seeds, unclipped)
        values["clip_share"] = share.to_json()
        if share.value is not None:
            verdicts.append(f"Without the clip the bias is smaller by {share.shown('.0%')}, the median over the grid.")
        beside = fmean(values["beside_gold"] for _, values in results)
        title = "The surrogate gradient's bias from stale rollouts"
        lead = (
            f"Seeds: {len(seeds)}. From a policy phi reached on-policy, each cell makes up to {stalenesses[-1]} updates"
            " on data of phi, at each rate, and takes how far the expected gradient on phi's data is from that on fresh"
            " data. S in publishes, one optimizer update each. Of rewarded responses"
            f" {beside:.2%} were not the gold one (the closed form takes them for wrong)."
        )
        figures = [
            *_figures(seeds, stalenesses, rates),
            _without(unclipped, stalenesses, rates),
            _over_distance(seeds, unclipped, results),
        ]
        return Findings(title, lead, values, verdicts, figures, [_table(seeds, results)])


def _axes(seeds: Sequence[Squares]) -> tuple[list[int], list[float]]:
    return sorted({s for s, _ in seeds[0]}), sorted({eta for _, eta in seeds[0]})


def _judged(seeds: Sequence[Squares], words: str) -> tuple[dict[str, Any], list[str]]:
    """Values and verdicts of one kind of bias."""
    stalenesses, rates = _axes(seeds)

    def rows(by_staleness: bool, fit: Any, key: str) -> Any:
        def statistic(sample: Sequence[Squares]) -> float:
            return median([getattr(one, key) for one in _lines(sample, stalenesses, rates, by_staleness, fit)])

        return statistic

    wanted = {
        "r_squared_staleness": rows(True, straight_line, "r_squared"),
        "r_squared_eta": rows(False, straight_line, "r_squared"),
        "exponent_staleness": rows(True, power_law, "slope"),
        "exponent_eta": rows(False, power_law, "slope"),
    }
    found = {name: estimate(seeds, statistic, name) for name, statistic in wanted.items()}
    found["per_staleness_and_eta"] = estimate(seeds, _gain, "gain")
    points, drowned = [(s, eta) for s in stalenesses for eta in rates], _drowned(seeds)
    values: dict[str, Any] = {name: pair.to_json() for name, pair in found.items()}
    values["points"] = [
        {"staleness": s, "eta": eta, "norm": _norm(seeds, (s, eta)), "noise": _noise(seeds, (s, eta))}
        for s, eta in points
    ]
    return values, [
        _verdict(words, "staleness", found["r_squared_staleness"], found["exponent_staleness"], drowned),
        _verdict(words, "learning rate", found["r_squared_eta"], found["exponent_eta"], drowned),
    ]


def _clip_share(seeds: Sequence[Squares], unclipped: Sequence[Squares]) -> Estimate:
    """How much of the bias is the clip's: 1 less bias without it over bias, the median over the grid. Unknown where
    nothing is concluded of the one or the other."""

    def share(pairs: Sequence[tuple[Squares, Squares]]) -> float:
        clipped, without = ([pair[k] for pair in pairs] for k in range(2))
        norms = [(_norm(without, point), _norm(clipped, point)) for point in seeds[0]]
        if any(whole == 0 for _, whole in norms):
            raise ValueError("a bias is lost in its noise")
        return 1 - median([rest / whole for rest, whole in norms])

    if max(map(_drowned, (seeds, unclipped))) >= MOST_DROWNED:
        return Estimate(None, None)

    return estimate(list(zip(seeds, unclipped, strict=True)), share, "clip_share")


def _by_seed(results: Results, kind: str) -> list[Squares]:
    """Squared bias of a kind by (S, eta), one dictionary a seed."""
    found: dict[int, Squares] = {}
    for cell, values in results:
        for point in values["points"]:
            squared = point[f"{kind}_squared"], point[f"{kind}_squared_error"]
            found.setdefault(cell.seed, {})[int(point["staleness"]), point["eta"]] = squared
    return [found[seed] for seed in sorted(found)]


def _norm(sample: Sequence[Squares], point: Point) -> float:
    """Root of the mean square over seeds, 0 where noise made the mean negative."""
    return math.sqrt(max(0.0, fmean(seed[point][0] for seed in sample)))


def _noise(sample: Sequence[Squares], point: Point) -> float:
    """The square root of two standard errors of the mean square: a norm below it cannot be told from 0."""
    return math.sqrt(2 * math.sqrt(sum(seed[point][1] ** 2 for seed in sample)) / len(sample))


def _drowned(sample: Sequence[Squares]) -> float:
    """Share of the grid at which the bias is below its noise."""
    return fmean(_norm(sample, point) < _noise(sample, point) for point in sample[0])


def _lines(
    sample: Sequence[Squares], stalenesses: Sequence[int], rates: Sequence[float], by_staleness: bool, fit: Any
) -> list[Line]:
    """A fit for each row of the grid. ValueError where a bias is below its noise."""
    if any(_norm(sample, (s, eta)) == 0 for s in stalenesses for eta in rates):
        raise ValueError("a bias is lost in its noise")
    if by_staleness:
        return [fit(stalenesses, [_norm(sample, (s, eta)) for s in stalenesses]) for eta in rates]
    return [fit(rates, [_norm(sample, (s, eta)) for eta in rates]) for s in stalenesses]


def _gain(sample: Sequence[Squares]) -> float:
    """The c of bias = c S eta."""
    return proportion([s * eta for s, eta in sample[0]], [_norm(sample, point) for point in sample[0]])


def _verdict(words: str, of: str, r_squared: Estimate, exponent: Estimate, drowned: float) -> str:
    value = r_squared.value
    if value is None or drowned >= MOST_DROWNED:
        return (
            f"Whether the bias{words} is linear in {of} cannot be said: it is below its noise at {drowned:.0%} of the"
            " grid; more seeds."
        )
    word = "linear" if value >= LINEAR else "not linear"
    return (
        f"The bias{words} is {word} in {of} by the declared rule: R² {r_squared.shown()} (bar {LINEAR}); as a power law"
        f" its exponent is {exponent.shown()}."
    )


def _figures(seeds: Sequence[Squares], stalenesses: Sequence[int], rates: Sequence[float]) -> list[Figure]:
    by_s = [
        line(stalenesses, [_norm(seeds, (s, eta)) for s in stalenesses], f"η {eta:g}", colour, "%{y:.3g}",
             mode="lines+markers")
        for eta, colour in zip(rates, COLOURS, strict=False)
    ]  # fmt: skip
    by_eta = [
        line(rates, [_norm(seeds, (s, eta)) for eta in rates], f"S {s}", colour, "%{y:.3g}", mode="lines+markers")
        for s, colour in zip(stalenesses, COLOURS, strict=False)
    ]
    product = [
        line([s * eta for eta in rates], [_norm(seeds, (s, eta)) for eta in rates], f"S {s}", colour, "%{y:.3g}",
             mode="markers")
        for s, colour in zip(stalenesses, COLOURS, strict=False)
    ]  # fmt: skip
    return [
        Figure("bias-staleness", "Bias over staleness", "A straight line through 0 is the law at fixed rate.",
               spec(by_s, "S (publishes)", "‖bias‖")),
        Figure("bias-eta", "Bias over learning rate", "A straight line through 0 is the law at fixed staleness.",
               spec(by_eta, "η", "‖bias‖")),
        Figure("bias-product", "Bias over S·η", "Where the law holds, all points lie on one line.",
               spec(product, "S·η", "‖bias‖"), "full"),
    ]  # fmt: skip


def _without(seeds: Sequence[Squares], stalenesses: Sequence[int], rates: Sequence[float]) -> Figure:
    traces = [
        line([s * eta for eta in rates], [_norm(seeds, (s, eta)) for eta in rates], f"S {s}", colour, "%{y:.3g}",
             mode="markers")
        for s, colour in zip(stalenesses, COLOURS, strict=False)
    ]  # fmt: skip
    caption = "What is left of it where no ratio is clipped: the part that grows with the drift alone."
    return Figure("bias-unclipped", "Bias without the clip over S·η", caption, spec(traces, "S·η", "‖bias‖"), "full")


def _shown(sample: Sequence[Squares], point: Point) -> float | None:
    norm = _norm(sample, point)
    return norm if norm > _noise(sample, point) else None


def _over_distance(seeds: Sequence[Squares], unclipped: Sequence[Squares], results: Results) -> Figure:
    """Both kinds against how far the policy has gone, whatever the steps that led there."""
    distances: dict[Point, list[float]] = {}
    for _, values in results:
        for point in values["points"]:
            distances.setdefault((int(point["staleness"]), point["eta"]), []).append(point["lag_distance"])
    points = sorted(distances, key=lambda point: fmean(distances[point]))
    x = [fmean(distances[point]) for point in points]
    traces = [
        line(x, [_shown(kind, point) for point in points], name, colour, "%{y:.3g}", mode="markers")
        for kind, name, colour in ((seeds, "as trained", BLUE), (unclipped, "without the clip", ORANGE))
    ]
    caption = "Where it is above its noise; both axes logarithmic: on a line of slope 1 bias goes with distance."
    chart = spec(traces, "‖θ − φ‖", "‖bias‖", xaxis_type="log", yaxis_type="log", yaxis_rangemode="normal")
    return Figure("bias-distance", "Bias over distance", caption, chart, "full")


def _table(seeds: Sequence[Squares], results: Results) -> tuple[str, str, list[str], list[list[str]], int]:
    rows: dict[Point, list[list[float]]] = {}
    for _, values in results:
        for point in values["points"]:
            rows.setdefault((int(point["staleness"]), point["eta"]), []).append(
                [point["lag_distance"], max(0.0, point["gradient_squared"]) ** 0.5]
            )
    body = [
        [str(s), f"{eta:g}", f"{_norm(seeds, (s, eta)):.4f}", f"{_noise(seeds, (s, eta)):.4f}"]
        + [f"{fmean(column):.4f}" for column in zip(*found, strict=True)]
        for (s, eta), found in sorted(rows.items())
    ]
    head = ["S", "η", "‖bias‖", "noise", "‖θ − φ‖", "‖H(θ, θ)‖"]
    return (
        "All cells",
        "Means over seeds (of the bias: root of the mean square). Noise: a norm below it cannot be told from 0.",
        head,
        body,
        6,
    )
