"""`offbeat market`: the pricing market's commands; this file has the group, `equilibrium` and `bench`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.commands.market_audit import audit
from offbeat.commands.market_options import RHO, AsJson, IndustryOptions, Lag, Markets, ScenarioOptions, takes
from offbeat.commands.market_shock import shock
from offbeat.commands.market_train import run, sweep

if TYPE_CHECKING:
    from offbeat.market.equilibrium import Benchmark

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=False,
    help="The continuous-time pricing market: equilibria, learners, audits.",
)
app.command()(audit)
app.command()(shock)
app.command()(run)
app.command()(sweep)


@app.command()
@takes(IndustryOptions)
def equilibrium(
    options: IndustryOptions,
    rho: Annotated[float, typer.Option("--rho", help="Discount rate per unit of time, for the longest latency.")] = RHO,
    rate: Annotated[float, typer.Option("--rate", help="Rivals' ticks per unit of time, for it, too.")] = 1.0,
    grid: Annotated[
        int | None,
        typer.Option(
            "--grid", min=2, max=101, help="Also Markov-perfect prices of two firms that reprice one at a time: points."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Nash and cartel prices with their certificates, null values of the profit gain, the grim-trigger frontier."""
    from rich.console import Console

    from offbeat.market.equilibrium import solve

    industry = options.industry()
    found = solve(industry)
    told = _told(found, options.box(industry), rate, rho)
    if grid is not None:
        told["markov_perfect"] = _repriced(found, options.box(industry), grid, rate, rho)
    if as_json:
        typer.echo(json.dumps({"demand": options.demand, "cost": list(industry.cost)} | told))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for name, end in (("Nash", found.nash), ("cartel", found.cartel)):
        rows = zip(end.prices, end.profits, end.interval, strict=True)
        for firm, (price, profit, (low, high)) in enumerate(rows):
            console.print(f"{name:6} firm {firm}: price {price:.6f} in [{low:.12f}, {high:.12f}], profit {profit:.6f}")
        console.print(f"       {end.why}; residual {end.residual:.1e}", style="dim")
    nulls = ", ".join(f"{name} {value:.3f}" for name, value in told["null_gains"].items())
    console.print(f"profit gain of play that has learnt nothing, prices in {told['box']}: {nulls}")
    console.print(
        f"grim trigger holds the cartel price while the discount at a reaction is {told['critical_discount']}"
    )
    for clock, played in told.get("markov_perfect", {}).items():
        prices = ", ".join(f"{price:.4f}" for price in played["prices"])
        gain = "not defined" if played["gain"] is None else f"{played['gain']:.3f}"
        console.print(
            f"Markov-perfect on {grid} prices, {clock}, rate {rate:g}: mean prices {prices}, profit gain {gain}; no"
            f" strategy gains more than {played['regret']:.1e}"
        )


def _told(found: Benchmark, box: tuple[float, float], rate: float, rho: float) -> dict[str, Any]:
    from offbeat.errors import SettingsError
    from offbeat.market.frontier import critical_discount, longest_latency
    from offbeat.market.gain import null_gains

    for name, value in (("rate", rate), ("rho", rho)):
        if not 0 < value < float("inf"):
            raise SettingsError(f"--{name} {value}: must be a finite number above 0")
    critical = [None if value != value else float(value) for value in critical_discount(found)]
    binding = max((value for value in critical if value is not None), default=None)
    latency = None if binding is None else float(longest_latency(rate, rho, binding))
    return {
        "nash_prices": found.nash.prices.tolist(),
        "cartel_prices": found.cartel.prices.tolist(),
        "nash_profits": found.nash.profits.tolist(),
        "cartel_profits": found.cartel.profits.tolist(),
        "residual": max(found.nash.residual, found.cartel.residual),
        "interval": {"nash": found.nash.interval.tolist(), "cartel": found.cartel.interval.tolist()},
        "certificate": {"nash": found.nash.why, "cartel": found.cartel.why},
        "slope": found.nash.slope,
        "box": list(box),
        "null_gains": null_gains(found, box).as_dict(),
        "critical_discount": critical,
        "longest_latency": latency,
    }


def _repriced(found: Benchmark, box: tuple[float, float], grid: int, rate: float, rho: float) -> dict[str, Any]:
    import numpy as np

    from offbeat.market.gain import profit_gain
    from offbeat.market.repricing import RepricingGame, markov_perfect

    prices = np.linspace(*box, grid)
    games = {
        "alternating": RepricingGame.alternating(found.industry, prices, rate, rho),
        "poisson": RepricingGame.poisson(found.industry, prices, (rate, rate), rho),
    }
    told = {}
    for clock, game in games.items():
        played = markov_perfect(game)
        gain = float(profit_gain(found, played.mean_profits[:, None])[0])
        told[clock] = {
            "prices": played.mean_prices.tolist(),
            "profits": played.mean_profits.tolist(),
            "gain": gain if np.isfinite(gain) else None,
            "pure": played.pure,
            "regret": played.regret,
        }
    return told


@dataclass(frozen=True)
class BenchOptions(ScenarioOptions):
    """Latency is on unless it is turned off."""

    latency: Lag = 1.0


@app.command()
@takes(BenchOptions)
def bench(
    options: BenchOptions,
    markets: Markets = 4096,
    events: Annotated[int, typer.Option("--events", min=1, help="Agent events of a repeat.")] = 4_000_000,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Repeats; the median counts.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Agent events a second on one core: one firm posting one price in one market is one event."""
    from rich.console import Console

    from offbeat.market.bench import measure

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    scenario = options.scenario(1.0)
    speed = measure(scenario, markets, events, repeats, lambda words: console.print(words, style="dim"))
    told = asdict(speed) | {"markets": markets, "firms": scenario.industry.firms, "demand": options.demand}
    if as_json:
        typer.echo(json.dumps(told | {"clock": options.clock, "latency": options.latency}))
    wall, cpu = speed.agent_events_per_second / 1e6, speed.agent_events_per_cpu_second / 1e6
    console.print(f"{wall:.2f} million agent events a second on one core ({cpu:.2f} a second of processor time)")
