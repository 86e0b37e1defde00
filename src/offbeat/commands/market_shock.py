"""`offbeat market shock`: forced deviation and demand shock against fixed rules, in calendar time and by decisions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.commands.market_options import AsJson, Markets, ScenarioOptions, Seed, takes

if TYPE_CHECKING:
    from rich.console import Console

    from offbeat.market.diagnostics.demand_shock import ShockResponse
    from offbeat.market.diagnostics.deviation import Deviation, Response, Verdict
    from offbeat.market.diagnostics.exploitability import Exploitability
    from offbeat.market.diagnostics.signalling import Signalling
    from offbeat.market.gain import NullGains
    from offbeat.market.scenario import Scenario
    from offbeat.market.shocks import Step

KINDS = ("best-response", "nash", "lowest")


@takes(ScenarioOptions)
def shock(
    options: ScenarioOptions,
    policies: Annotated[list[str], typer.Argument(help="Rules: one for all firms, or one for each.")],
    deviator: Annotated[int, typer.Option("--deviator", min=0, help="The firm whose price is cut.")] = 0,
    kind: Annotated[str, typer.Option("--kind", help="Cut to: best-response, nash or lowest.")] = "best-response",
    decisions: Annotated[int, typer.Option("--decisions", min=1, help="For how many of its own decisions.")] = 1,
    at: Annotated[float, typer.Option("--at", min=0, help="Time of the deviation and of the demand shock.")] = 30.0,
    watched: Annotated[float, typer.Option("--watched", help="Time that prices are watched for afterwards.")] = 30.0,
    size: Annotated[float, typer.Option("--size", help="Demand shock: added to every quality.")] = 0.25,
    lasting: Annotated[float, typer.Option("--lasting", help="Demand shock: how long, units of time.")] = 5.0,
    markets: Markets = 64,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the report page here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Cut one firm's price, then shock demand: punishment, recovery, net gain, signalling, and the word they allow."""
    from rich.console import Console

    from offbeat.errors import SettingsError
    from offbeat.market.diagnostics.deviation import Deviation
    from offbeat.market.shocks import Step

    if kind not in KINDS:
        raise SettingsError(f"--kind {kind}: there are {', '.join(KINDS)}")
    if not 0 < watched < float("inf"):
        raise SettingsError(f"--watched {watched}: must be a finite number above 0")
    scenario = options.scenario(at + watched)
    cut = Deviation(deviator, at, decisions, kind, watched)  # type: ignore[arg-type]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    done = _tests(scenario, policies, cut, Step(at, size, lasting), markets, seed, console)
    told = _told(done)
    if out is not None:
        from offbeat.commands.market_page import shock_page

        told["page"] = str(shock_page(out, done))
    if as_json:
        typer.echo(json.dumps(told))
    console.print(f"verdict: {told['verdict']}")
    for reason in told["reasons"]:
        console.print(f"  {reason}")
    nulls = ", ".join(f"{name} {value:.3f}" for name, value in told["null_gains"].items())
    console.print(f"  profit gain without any learning: {nulls}")
    for found in done.exploited:
        console.print(f"  firm {found.firm} gains {found.gained} by a learnt best response (it has {found.present})")
    if "page" in told:
        console.print(f"page: {told['page']}")


@dataclass(frozen=True)
class Tested:
    """What the tests of `shock` found for the rules `names`, one for each firm."""

    names: list[str]
    response: Response
    answer: ShockResponse
    signals: Signalling
    verdict: Verdict
    nulls: NullGains
    exploited: list[Exploitability]


def _tests(
    scenario: Scenario, policies: list[str], cut: Deviation, shock: Step, markets: int, seed: int, console: Console
) -> Tested:
    from offbeat.errors import SettingsError
    from offbeat.market.course import play
    from offbeat.market.diagnostics.demand_shock import shock_demand
    from offbeat.market.diagnostics.deviation import check, force, judge
    from offbeat.market.diagnostics.exploitability import exploitability
    from offbeat.market.diagnostics.signalling import signalling
    from offbeat.market.equilibrium import solve
    from offbeat.market.gain import null_gains
    from offbeat.market.rules import rule

    firms, benchmark = scenario.industry.firms, solve(scenario.industry)
    if len(policies) not in (1, firms):
        raise SettingsError(f"policies: {len(policies)} for {firms} firms; give one, or one for each firm")
    check(cut, firms)
    names = policies * firms if len(policies) == 1 else policies
    seats = [rule(name, benchmark, scenario.box, seed + i) for i, name in enumerate(names)]
    console.print("forced deviation", style="dim")
    response = force(scenario, benchmark, seats, cut, markets, seed)
    console.print("demand shock", style="dim")
    answer = shock_demand(scenario, benchmark, seats, shock, cut.watched, markets, seed)
    console.print("signalling", style="dim")
    signals = signalling(play(scenario.open(markets, seed), seats, scenario.horizon), seed)
    console.print("learnt best responses", style="dim")
    exploited = [exploitability(scenario, seats, firm, markets=markets, seed=seed) for firm in range(firms)]
    word = judge(response, float((benchmark.cartel.prices - benchmark.nash.prices).mean()))
    return Tested(names, response, answer, signals, word, null_gains(benchmark, scenario.box), exploited)


def _told(done: Tested) -> dict[str, Any]:
    signals = done.signals
    return {
        "policies": done.names,
        "verdict": done.verdict.word,
        "reasons": list(done.verdict.reasons),
        "gain": done.response.gain.as_dict(),
        "null_gains": done.nulls.as_dict(),
        "deviation": response_told(done.response),
        "demand_shock": shock_told(done.answer),
        "signalling": {
            name: _list(getattr(signals, name)) for name in ("slope", "low", "high", "null_low", "null_high")
        }
        | {"collapsed": signals.collapsed},
        "exploitability": [
            {"firm": found.firm, "gained": found.gained.as_dict(), "present": found.present.as_dict()}
            for found in done.exploited
        ],
    }


def response_told(response: Response) -> dict[str, Any]:
    """A forced deviation for JSON."""
    return {
        "firm": response.deviation.firm,
        "kind": response.deviation.kind,
        "punishment_depth": response.depth.as_dict(),
        "recovery_ratio": response.recovery,
        "half_life": response.half_life,
        "net_gain": response.net_gain.as_dict(),
        "unprofitable_share": response.unprofitable,
        "gain": response.gain.as_dict(),
        "calendar_time": {
            name: _list(getattr(response, name))
            for name in ("times", "deviator", "rivals", "deviator_base", "rivals_base")
        },
        "event_time": {"deviator": _list(response.own_events), "rivals": _list(response.rival_events)},
    }


def shock_told(answer: ShockResponse) -> dict[str, Any]:
    """A demand shock for JSON."""
    return {
        "size": answer.shock.size,
        "lasting": answer.shock.lasting,
        "displaced": answer.displaced,
        "left": answer.left.as_dict(),
        "recovery_ratio": answer.recovery,
        "half_life": answer.half_life,
        "calendar_time": {name: _list(getattr(answer, name)) for name in ("times", "prices", "base")},
        "event_time": _list(answer.by_decision),
    }


def _list(values: Any) -> list[float | None]:
    return [None if value != value else float(value) for value in values]
