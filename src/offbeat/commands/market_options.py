"""Options that commands of the market share, declared once: a command that takes `options` takes them all.

Values are checked by the market room itself, when the industry or the scenario is made of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from offbeat.market.industry import Industry
    from offbeat.market.scenario import Scenario

DemandName = Annotated[str, typer.Option("--demand", help="logit, linear, hotelling, ces or homogeneous.")]
Quality = Annotated[
    list[float] | None, typer.Option("--quality", help="Quality or intercept of a firm; once for each firm.")
]
Cost = Annotated[list[float] | None, typer.Option("--cost", help="Unit cost of a firm; once for each firm.")]
Mu = Annotated[float | None, typer.Option("--mu", help="Logit: scale of tastes; default 0.25.")]
Outside = Annotated[
    float | None, typer.Option("--outside", help="Logit: quality of the outside good (0); CES: its weight (1).")
]
Substitution = Annotated[
    float | None, typer.Option("--substitution", help="Linear: d, from 0 to below 1; default 0.25.")
]
Transport = Annotated[float | None, typer.Option("--transport", help="Hotelling: cost of the whole line; default 1.")]
Elasticity = Annotated[float | None, typer.Option("--elasticity", help="CES: elasticity of substitution; default 4.")]
Intercept = Annotated[
    float | None, typer.Option("--intercept", help="Homogeneous: demand is intercept less price; default 1.")
]
ClockName = Annotated[str, typer.Option("--clock", help="poisson, alternating, common or common-poisson.")]
Rate = Annotated[
    list[float] | None, typer.Option("--rate", help="Ticks per unit of time; once, or once for each firm.")
]
Lag = Annotated[float, typer.Option("--latency", help="Mean age of what a firm sees of a rival, units of time.")]
LagLaw = Annotated[str, typer.Option("--latency-law", help="constant, uniform or exponential.")]
Rho = Annotated[
    float, typer.Option("--rho", help="Discount rate per unit of time; the default is Calvano's 0.95 a period.")
]
Lowest = Annotated[float | None, typer.Option("--lowest", help="Lowest price allowed; default the lowest cost.")]
Highest = Annotated[
    float | None, typer.Option("--highest", help="Highest price allowed; default well above the cartel price.")
]
Horizon = Annotated[float, typer.Option("--horizon", help="Length of an episode, units of time.")]
Markets = Annotated[int, typer.Option("--markets", min=1, help="Markets played at once.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")]

RHO = 0.05129329438755058
ABOVE = 1.6
"""The default box reaches so many times the cartel margin above the lowest cost."""


@dataclass(frozen=True)
class IndustryOptions:
    """Demand, costs and the action box."""

    demand: DemandName = "logit"
    quality: Quality = None
    cost: Cost = None
    mu: Mu = None
    outside: Outside = None
    substitution: Substitution = None
    transport: Transport = None
    elasticity: Elasticity = None
    intercept: Intercept = None
    lowest: Lowest = None
    highest: Highest = None

    def industry(self) -> Industry:
        """Raises SettingsError, like all below."""
        from offbeat.market.choices import industry_from

        own = ("mu", "outside", "substitution", "transport", "elasticity", "intercept")
        return industry_from(self.demand, self.quality, self.cost, **{name: getattr(self, name) for name in own})

    def box(self, industry: Industry) -> tuple[float, float]:
        """The action box: from the lowest cost to 1.6 times the cartel margin above it, where not given."""
        from offbeat.market.equilibrium import solve
        from offbeat.market.limits import check_box

        low = min(industry.cost) if self.lowest is None else self.lowest
        high = self.highest
        if high is None:
            high = low + ABOVE * (float(solve(industry).cartel.prices.max()) - low)
        return check_box((low, high), industry)


@dataclass(frozen=True)
class ScenarioOptions(IndustryOptions):
    """And who ticks when, and who sees how late."""

    clock: ClockName = "poisson"
    rate: Rate = None
    latency: Lag = 0.0
    latency_law: LagLaw = "constant"
    rho: Rho = RHO

    def scenario(self, horizon: float) -> Scenario:
        """The scenario that the options describe."""
        from offbeat.errors import SettingsError
        from offbeat.market.choices import clock_from, latency_from
        from offbeat.market.scenario import Scenario

        if not 0 < horizon < float("inf"):
            raise SettingsError(f"horizon: {horizon} must be a finite number above 0")
        industry = self.industry()
        clock = clock_from(self.clock, industry.firms, self.rate or [1.0])
        latency = latency_from(self.latency, self.latency_law)
        return Scenario(industry, clock, latency, self.rho, self.box(industry), horizon)


def takes(kind: type[IndustryOptions]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command's parameter `options` becomes one command-line option for each field of `kind`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = [field.name for field in fields(kind)]
        hints = get_type_hints(command, include_extras=True) | get_type_hints(kind, include_extras=True)
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
        shared = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
            for field in fields(kind)
        ]
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        every = [p.replace(annotation=hints[p.name]) for p in keyword + shared]

        @wraps(command)
        def called(**given: Any) -> None:
            options = kind(**{name: given.pop(name) for name in names})
            command(options=options, **given)

        called.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in every}
        del called.__wrapped__
        return called

    return decorate
