"""`offbeat market shock`: the battery of tests for fixed rules or the policies of a run; see `market.diagnostics`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.commands.market_options import AsJson, Markets, ScenarioOptions, Seed, takes

if TYPE_CHECKING:
    from rich.console import Console

    from offbeat.market.diagnostics.battery import Entrants, Tested
    from offbeat.market.diagnostics.demand_shock import ShockResponse
    from offbeat.market.diagnostics.deviation import Response
    from offbeat.market.equilibrium import Benchmark
    from offbeat.market.scenario import Scenario

KINDS = ("best-response", "nash", "lowest")
MARKETS_OF_A_TRAINING = 4


@takes(ScenarioOptions)
def shock(
    options: ScenarioOptions,
    policies: Annotated[
        list[str], typer.Argument(help="Rules, one for all firms or one for each; or the directory of a market run.")
    ],
    cell: Annotated[int, typer.Option("--cell", min=0, help="Of a run's directory: which cell, counted from 0.")] = 0,
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
    from offbeat.market.diagnostics.battery import rules_as_entrants, run_tests
    from offbeat.market.diagnostics.deviation import Deviation
    from offbeat.market.equilibrium import solve
    from offbeat.market.shocks import Step

    if kind not in KINDS:
        raise SettingsError(f"--kind {kind}: there are {', '.join(KINDS)}")
    if not 0 < watched < float("inf"):
        raise SettingsError(f"--watched {watched}: must be a finite number above 0")
    horizon = at + watched
    if len(policies) == 1 and Path(policies[0]).is_dir():
        if options != ScenarioOptions():
            raise SettingsError(f"{policies[0]}: a run is tested in its own market; leave options of the market out")
        scenario, benchmark, entrants = _of_run(Path(policies[0]), cell, horizon)
    else:
        scenario = options.scenario(horizon)
        benchmark = solve(scenario.industry)
        entrants = rules_as_entrants(policies, benchmark, scenario.box, markets, seed)
    cut = Deviation(deviator, at, decisions, kind, watched)  # type: ignore[arg-type]
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(words: str) -> None:
        console.print(words, style="dim")

    done = run_tests(scenario, benchmark, entrants, cut, Step(at, size, lasting), seed, say)
    told = _told(done)
    if out is not None:
        from offbeat.commands.market_page import shock_page

        told["page"] = str(shock_page(out, done))
    if as_json:
        typer.echo(json.dumps(told))
    _summarise(done, told, console)


def _summarise(done: Tested, told: dict[str, Any], console: Console) -> None:
    console.print(f"verdict: {told['verdict']}")
    for reason in told["reasons"]:
        console.print(f"  {reason}")
    nulls = ", ".join(f"{name} {value:.3f}" for name, value in told["null_gains"].items())
    console.print(f"  profit gain without any learning: {nulls}")
    for found in done.exploited:
        console.print(f"  firm {found.firm} gains {found.gained} by a learnt best response (it has {found.present})")
    if "page" in told:
        console.print(f"page: {told['page']}")


def _of_run(directory: Path, cell: int, horizon: float) -> tuple[Scenario, Benchmark, Entrants]:
    """The noise-free policies of a run's trainings that did not diverge, in the market of their cell."""
    import numpy as np

    from offbeat.errors import SettingsError
    from offbeat.market.diagnostics.battery import Entrants
    from offbeat.market.learners.policies import load_policies
    from offbeat.market.learners.runfile import read_market_run

    run = read_market_run(directory)
    if not 0 <= cell < len(run.study.cells):
        raise SettingsError(f"--cell {cell}: {directory} has cells 0 to {len(run.study.cells) - 1}")
    kept = np.flatnonzero((run.cell == cell) & ~run.diverged)
    if not len(kept):
        raise SettingsError(f"--cell {cell}: every training of it diverged; there is no policy to test")
    policies, firms = load_policies(directory), run.benchmark.industry.firms
    units = np.repeat(kept, MARKETS_OF_A_TRAINING)
    alone = [[policies.policy(int(training))] * firms for training in kept]
    name = f"{directory.resolve().name}, cell {cell}: {len(kept)} trainings"
    entrants = Entrants([name] * firms, [policies.policy(units)] * firms, units, alone)
    return run.study.scenario(cell, run.benchmark, horizon), run.benchmark, entrants


def _told(done: Tested) -> dict[str, Any]:
    signals = done.signals
    return {
        "policies": list(done.names),
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
