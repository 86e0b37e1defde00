"""`offbeat market audit`: a policy that can be run, or a log of its sales; a verdict with its uncertainty, never a
bare number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.commands.market_options import AsJson, Horizon, Markets, ScenarioOptions, Seed, takes

if TYPE_CHECKING:
    from offbeat.market.audit.sessions import Findings
    from offbeat.market.equilibrium import Benchmark


@takes(ScenarioOptions)
def audit(
    options: ScenarioOptions,
    target: Annotated[
        str, typer.Argument(help="module:policy, a function or class; or a CSV log of price and quantity.")
    ],
    horizon: Horizon = 60.0,
    markets: Markets = 16,
    seed: Seed = 0,
    firm: Annotated[
        str | None, typer.Option("--firm", help="Of a log of several firms: whose sales are audited.")
    ] = None,
    answer_seconds: Annotated[
        float,
        typer.Option("--answer-seconds", min=0.01, help="Longest wait for an answer before the policy counts as hung."),
    ] = 10.0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the report page here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Test a pricing policy: deviations, calibrated regret, a panel of rivals, null baselines, a verdict with
    reasons.
    """
    from rich.console import Console

    from offbeat.errors import SettingsError

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if target.lower().endswith(".csv"):
        if out is not None:
            raise SettingsError("--out: a log has no page; its verdict is the whole report")
        _finish(_of_log(Path(target), firm, options.cost), as_json, console)
        return
    from offbeat.market.audit.candidate import Limits
    from offbeat.market.audit.sessions import Plan, verdict
    from offbeat.market.audit.sessions import audit as run_all
    from offbeat.market.equilibrium import solve

    if firm is not None:
        raise SettingsError(f"--firm {firm}: belongs to a CSV log; a policy that is run sits in seat 0")
    scenario = options.scenario(horizon)
    benchmark = solve(scenario.industry)
    plan = Plan(markets=markets, seed=seed, limits=Limits(answer_seconds=answer_seconds))
    found = run_all(target, scenario, benchmark, plan, lambda words: console.print(words, style="dim"))
    word, reasons = verdict(found, benchmark)
    told = {"policy": target, "verdict": word, "reasons": list(reasons)} | _told(found, benchmark, scenario.box)
    if out is not None:
        from offbeat.commands.market_page import audit_page

        told["page"] = str(audit_page(out, found, benchmark, word, list(reasons)))
    _finish(told, as_json, console)


def _of_log(path: Path, firm: str | None, cost: list[float] | None) -> dict[str, Any]:
    from offbeat.errors import SettingsError
    from offbeat.market.audit.log import judge_sales, read_sales

    if cost is not None and len(cost) != 1:
        raise SettingsError(f"--cost: {len(cost)} costs; a log is one seller's, give its unit cost once")
    sales = read_sales(path, firm)
    word, reasons, found = judge_sales(sales, cost[0] if cost else None)
    return {
        "log": str(path),
        "verdict": word,
        "reasons": reasons,
        "periods": len(sales.price),
        "calibrated_regret": found.regret.as_dict(),
        "identified": found.identified,
        "levels": found.levels,
        "propensities": found.propensities,
    }


def _told(found: Findings, benchmark: Benchmark, box: tuple[float, float]) -> dict[str, Any]:
    from dataclasses import asdict

    from offbeat.commands.market_shock import response_told

    panel = [
        {
            "rival": against.rival,
            "gain": against.gain.as_dict(),
            "null_gains": {name: value.as_dict() for name, value in against.nulls.items()},
            "calibrated_regret": against.regret.as_dict(),
        }
        for against in found.panel
    ]
    return {
        "nash_prices": benchmark.nash.prices.tolist(),
        "cartel_prices": benchmark.cartel.prices.tolist(),
        "box": list(box),
        "null_gains": found.null_gains.as_dict(),
        "panel": panel,
        "self_play": {
            "gain": found.self_gain and found.self_gain.as_dict(),
            "price_index": found.self_index and found.self_index.as_dict(),
            "calibrated_regret": found.self_regret and found.self_regret.as_dict(),
        },
        "own_deviation": found.self_response and response_told(found.self_response),
        "rivals_deviation": found.reaction and response_told(found.reaction),
        "misbehaviour": [asdict(failure) for failure in found.failures],
        "sessions_skipped": found.skipped,
        "decisions": found.asked,
        "prices_outside_box": found.outside,
    }


def _finish(told: dict[str, Any], as_json: bool, console: Any) -> None:
    if as_json:
        typer.echo(json.dumps(told))
    console.print(f"verdict: {told['verdict']}")
    for reason in told["reasons"]:
        console.print(f"  {reason}")
    for against in told.get("panel", []):
        gain = against["gain"]
        nulls = ", ".join(f"{name} {_words(value)}" for name, value in against["null_gains"].items())
        console.print(f"  against {against['rival']}: profit gain {_words(gain)}; in its seat {nulls}")
    if "page" in told:
        console.print(f"page: {told['page']}")


def _words(told: dict[str, float | None]) -> str:
    if told["mean"] is None:
        return "not defined"
    return f"{told['mean']:.3f}" + ("" if told["low"] is None else f" [{told['low']:.3f}, {told['high']:.3f}]")
