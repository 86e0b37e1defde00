"""What studies conclude, on results made from formulas: the laws where they hold, and that they do not where not."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from typing import Any

import pytest

from offbeat.eventtime.draws import Draws
from offbeat.studies.bias import BiasStudy
from offbeat.studies.cell import Cell
from offbeat.studies.collapse import CollapseStudy
from offbeat.studies.gac import EDGE, GacStudy
from offbeat.studies.grid import Estimate, Trained, estimate
from offbeat.studies.lag_one import PAIRS, LagOneStudy, verdicts
from offbeat.studies.page import html
from offbeat.studies.registry import design
from offbeat.studies.study import Findings, Outcome
from offbeat.studies.two_constraint import TwoConstraintStudy
from offbeat.theory.fits import Interval
from tests.studies.made_up import START, results, run


def said(found: Findings, words: str) -> str:
    (verdict,) = [verdict for verdict in found.verdicts if words in verdict]
    return verdict


def bias_values(law: Any, error: float = 0.0) -> Any:
    def values(cell: Cell, draws: Draws) -> dict[str, Any]:
        points = [
            {
                "staleness": s,
                "eta": eta,
                "bias_squared": (law(s, eta) * (1 + 0.02 * draws.normal())) ** 2,
                "bias_squared_error": error,
                "unclipped_squared": (2 * s * eta) ** 2,
                "unclipped_squared_error": error,
                "gradient_squared": 1.0,
                "lag_distance": 1.0,
            }
            for eta in cell.options["rates"]
            for s in cell.options["stalenesses"]
        ]
        return {"points": points, "beside_gold": 0.0}

    return values


def test_a_bias_linear_in_both_is_found_linear() -> None:
    found = BiasStudy().findings(results(BiasStudy(), 5, bias_values(lambda s, eta: 3.0 * s * eta)), smoke=False)
    assert "is linear in staleness" in said(found, "bias is linear in staleness")
    assert "is linear in learning rate" in said(found, "bias is linear in learning rate")
    assert found.values["exponent_staleness_bias"]["value"] == pytest.approx(1.0, abs=0.05)
    assert found.values["per_staleness_and_eta_bias"]["value"] == pytest.approx(3.0, rel=0.02)
    assert found.values["clip_share"]["value"] == pytest.approx(1 / 3, abs=0.02), "without the clip it is 2 S eta"


def test_a_bias_that_saturates_is_not_found_linear() -> None:
    study = BiasStudy()
    found = study.findings(results(study, 5, bias_values(lambda s, eta: math.sqrt(eta) * (1 + 0.05 / s))), smoke=False)
    assert said(found, "bias is not linear in staleness")
    assert said(found, "bias without the clip is linear in staleness"), "each kind has its own verdict"


@pytest.mark.parametrize(("drowned", "decides"), [(3, True), (4, False)])
def test_a_quarter_of_the_grid_in_noise_is_too_much(drowned: int, decides: bool) -> None:
    """Of 16 points; with fewer the rest decides, and the clip's share is told."""
    study = BiasStudy()
    rates, stalenesses = (study.cells(1, smoke=False)[0].options[name] for name in ("rates", "stalenesses"))
    lost = [(s, eta) for eta in rates for s in stalenesses][:drowned]

    def values(cell: Cell, draws: Draws) -> dict[str, Any]:
        made = bias_values(lambda s, eta: 3.0 * s * eta)(cell, draws)
        for point in made["points"]:
            if (point["staleness"], point["eta"]) in lost:
                point["bias_squared_error"] = 1.0
        return made

    found = study.findings(results(study, 5, values), smoke=False)
    assert len([words for words in found.verdicts if "cannot be said" in words]) == (0 if decides else 2)
    assert (found.values["clip_share"]["value"] is not None) == decides


def test_a_bias_lost_in_noise_is_said_to_be() -> None:
    study = BiasStudy()
    lost = results(study, 5, bias_values(lambda s, eta: s * eta, error=1.0))
    assert len([v for v in study.findings(lost, smoke=False).verdicts if "cannot be said" in v]) == 4


def edge_values(edge: Any) -> Any:
    """Gain falls from .6 through .3 at the edge; collapse above twice the edge."""

    def values(cell: Cell, draws: Draws) -> dict[str, Any]:
        beyond = math.log(cell.learning_rate / edge(cell.staleness)) / math.log(2) + 0.05 * draws.normal()
        final = START + 0.6 / (1 + math.exp(4 * beyond))
        return run(final, cell.steps, collapse_at=50 if beyond > 1 else None)

    return values


def test_slopes_of_the_two_constraints_are_found_where_they_hold() -> None:
    study = TwoConstraintStudy()
    found = study.findings(results(study, 5, edge_values(lambda s: min(5e-4, 2e-3 / max(s, 1)))), smoke=False)
    slope = found.values["slope_half_gain_staleness_limited"]
    assert slope["value"] == pytest.approx(-1.0, abs=0.15)
    assert "as predicted" in said(found, "half gain edge, staleness-limited")
    assert found.values["slope_half_gain_horizon_limited"]["value"] == pytest.approx(0.0, abs=0.15)


def test_an_edge_that_does_not_move_contradicts_the_staleness_limit() -> None:
    study = TwoConstraintStudy()
    found = study.findings(results(study, 5, edge_values(lambda s: 1.5e-4)), smoke=False)
    assert "not as predicted" in said(found, "half gain edge, staleness-limited")
    assert found.values["grid"][0]["seeds"] == 5


def test_an_edge_beyond_the_grid_is_not_invented() -> None:
    study = TwoConstraintStudy()
    found = study.findings(results(study, 2, edge_values(lambda s: 1.0)), smoke=False)
    assert found.values["eta_max_half_gain"]["8"] == {"value": None, "interval": None}
    assert "no slope" in said(found, "half gain edge, staleness-limited")


def test_collapse_time_inverse_to_rate_and_free_of_staleness_is_found() -> None:
    def values(cell: Cell, draws: Draws) -> dict[str, Any]:
        at = round(0.15 / cell.learning_rate * math.exp(0.05 * draws.normal()))
        unstable = cell.learning_rate > 2e-4
        return run(0.8, cell.steps, at + cell.staleness if unstable else None, cosine=0.4 if unstable else 0.1)

    study = CollapseStudy()
    found = study.findings(results(study, 5, values), smoke=False)
    assert "as predicted" in said(found, "S = 4: log")
    assert "does not depend on S" in said(found, "T_c·η")
    assert "is higher than in stable runs" in said(found, "cosine")


def test_a_rate_at_which_some_runs_last_says_nothing_about_the_time_of_collapse() -> None:
    def values(cell: Cell, draws: Draws) -> dict[str, Any]:
        lasts = cell.learning_rate < 5e-4 and cell.seed > 0
        at = round(0.15 / cell.learning_rate) if cell.learning_rate > 5e-4 else 20
        return run(0.8, cell.steps, None if lasts or cell.learning_rate < 2e-4 else at + cell.staleness)

    found = CollapseStudy().findings(results(CollapseStudy(), 5, values), smoke=False)
    assert found.values["slope_collapse_time_staleness_4"]["value"] == pytest.approx(-1.0, abs=0.1)


@pytest.mark.parametrize("smoke", [True, False])
@pytest.mark.parametrize("name", ["two-constraint", "collapse", "gac", "bias", "lag-one"])
@pytest.mark.parametrize("learnt", [True, False])
def test_every_study_has_a_page_whatever_came_of_it(name: str, smoke: bool, learnt: bool) -> None:
    study = design(name)
    assert study is not None
    train = edge_values(lambda s: 5e-4) if learnt else lambda cell, draws: run(0.0, cell.steps, cosine=0.0)
    values = bias_values(lambda s, eta: s * eta * learnt) if name == "bias" else train
    found = study.findings(results(study, 2, values, smoke), smoke)
    page = html(Outcome(name, Path("study"), 10, 2, smoke, 60.0, found))
    assert all(escape(verdict) in page for verdict in found.verdicts)
    assert page.count('data-figure="figure-') == sum(figure.spec is not None for figure in found.figures)
    json.dumps(found.values, allow_nan=False)


FINALS = {"sync": 0.8, "plain": 0.3, "autopilot": 0.7}


def gac_values(finals: dict[str, float], plain_at_best: float = 0.6) -> Any:
    def values(cell: Cell, draws: Draws) -> dict[str, Any]:
        final = finals.get(cell.arm, 0.5)
        if cell.learning_rate < EDGE and cell.arm != "sync":
            final = plain_at_best if cell.arm == "plain" else 0.5
        cosine = {"sync": 0.1, "plain": 0.3}.get(cell.arm, 0.12) + 0.005 * draws.normal()
        return run(final + 0.01 * draws.normal(), cell.steps, cosine=cosine)

    return values


def test_a_gain_of_the_direction_is_not_explained_by_its_controls() -> None:
    study = GacStudy()
    finals = FINALS | {"cap": 0.75, "shrink only": 0.35, "random direction": 0.35}
    found = study.findings(results(study, 5, gac_values(finals)), smoke=False)
    assert "are twice as aligned" in said(found, "Signature")
    assert "cap beats plain" in said(found, "beat")
    assert "does not explain" in said(found, "'shrink only'")
    assert "cap recovers 80%" in said(found, "cap recover")
    assert "does not explain" in said(found, "lower fixed learning rate")


def test_a_control_that_does_as_well_is_said_to_explain_the_gain() -> None:
    study = GacStudy()
    finals = FINALS | {"cap": 0.5, "shrink only": 0.52, "random direction": 0.35}
    found = study.findings(results(study, 5, gac_values(finals, plain_at_best=0.7)), smoke=False)
    assert "'shrink only' explains cap's gain" in said(found, "'shrink only'")
    assert "a lower fixed learning rate explains what it gains" in said(found, "lower fixed")
    assert "cap does not recover 80%" in said(found, "cap does not recover")


def test_without_a_gain_there_is_nothing_to_explain() -> None:
    study = GacStudy()
    finals = FINALS | {"cap": 0.25, "shrink only": 0.35, "random direction": 0.35}
    found = study.findings(results(study, 5, gac_values(finals)), smoke=False)
    assert "there is no gain" in said(found, "does not beat plain")
    assert not [verdict for verdict in found.verdicts if "'shrink only'" in verdict]


def lag_one(**finals: float) -> Findings:
    def values(cell: Cell, draws: Draws) -> dict[str, Any]:
        return run(finals[cell.arm.replace(" ", "_")] + 0.005 * draws.normal(), cell.steps, cosine=0.1)

    return LagOneStudy().findings(results(LagOneStudy(), 5, values), smoke=False)


@pytest.mark.parametrize(
    ("no_clip", "momentum", "of_clip", "of_momentum"),
    [
        (0.29, 0.29, "The clip explains it", "Momentum does not explain it"),
        (0.35, 0.35, "The clip explains a part of it", "Momentum explains a part of it"),
        (0.40, 0.40, "The clip does not explain it", "Momentum explains it"),
    ],
)
def test_what_explains_the_lead_of_lag_one(no_clip: float, momentum: float, of_clip: str, of_momentum: str) -> None:
    found = lag_one(sync=0.3, lag_one=0.4, no_clip=no_clip, momentum=momentum)
    assert "is better than fresh data" in found.verdicts[0]
    assert found.verdicts[1].startswith(of_clip)
    assert found.verdicts[2].startswith(of_momentum)


def test_differences_lost_in_scatter_explain_nothing() -> None:
    wide = Estimate(0.05, Interval(-0.1, 0.2))
    less = dict.fromkeys(PAIRS, wide) | {("lag one", "sync"): Estimate(0.1, Interval(0.05, 0.15))}
    assert [verdict.split(" explains")[0] for verdict in verdicts(less)[1:]] == [
        "Whether the clip",
        "Whether momentum",
    ]


def test_without_a_lead_of_lag_one_nothing_is_explained() -> None:
    (verdict,) = lag_one(sync=0.4, lag_one=0.4, no_clip=0.31, momentum=0.3).verdicts
    assert "cannot be said" in verdict
    (verdict,) = lag_one(sync=0.4, lag_one=0.3, no_clip=0.31, momentum=0.3).verdicts
    assert "is worse" in verdict


def test_one_seed_has_no_interval_and_decides_nothing() -> None:
    one = estimate([0.4], lambda sample: sample[0], "x")
    assert (one.value, one.interval, one.is_positive, one.shown(".1f")) == (0.4, None, False, "0.4 (one seed)")


def test_a_collapse_is_dated_by_the_version_that_sampled_it() -> None:
    def dated(staleness: int, **values: Any) -> int | None:
        cell = Cell("x", "train", "plain", 0, staleness, "fixed-lag", 1e-3, 150)
        return Trained(cell, run(0.8, 150, collapse_at=60) | values).collapse_time

    assert [dated(s) for s in (0, 4, 16)] == [60, 56, 44]
    assert dated(4, reward=[0.8] * 5, broke=5) == 5
    assert dated(4, reward=[0.8] * 150) is None
