"""Validated settings of `market run` and `market sweep`: TOML and `--set section.key=value` in, one frozen object out.

A wrong setting is one line that names key, value and remedy (SettingsError), and nothing is written. Knows no tensor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from offbeat.configs import read_config, read_override, section_of
from offbeat.errors import SettingsError
from offbeat.market.choices import ClockName, industry_from
from offbeat.market.clocks import Clock
from offbeat.market.equilibrium import Benchmark, solve
from offbeat.market.industry import Industry
from offbeat.market.learners.algorithms import DDPGSettings, LearnerSettings, SACSettings, Section
from offbeat.market.limits import check_box
from offbeat.market.market import RHO
from offbeat.market.quotes import Latency
from offbeat.market.rules import rule
from offbeat.market.scenario import Scenario

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Lag = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rates = Annotated[tuple[Positive, ...], Field(min_length=1, max_length=64)]
Lags = Annotated[tuple[Lag, ...], Field(min_length=1, max_length=64)]


class DemandSettings(Section):
    """Demand model and costs, one entry a firm; what is not given is the model's own default (`choices`)."""

    model: str = "logit"
    quality: tuple[Number, ...] | None = None
    cost: tuple[Number, ...] | None = None
    mu: float | None = None
    outside: float | None = None
    substitution: float | None = None
    transport: float | None = None
    elasticity: float | None = None
    income: float | None = None
    intercept: float | None = None

    def industry(self) -> Industry:
        """Raises SettingsError where there is no such industry."""
        given = self.model_dump(exclude={"model", "quality", "cost"})
        return industry_from(self.model, self.quality, self.cost, **given)


class MarketSettings(Section):
    """Cells are `rates` x `latencies`: repricings per unit of time and firm, and lag of what is seen of rivals.

    `speeds`: with Poisson clocks, each firm's own factor on the rate (none: all alike).
    `box` (lowest, highest price), or a number xi for Calvano's [nash - xi D, cartel + xi D], D = cartel - nash.
    `observe` everything (prices seen, their ages) or prices alone. With `rival`, a fixed rule, firm 0 alone learns.
    """

    clock: ClockName = "poisson"
    rates: Rates = (1.0,)
    speeds: Rates | None = None
    latencies: Lags = (0.0,)
    latency_law: Literal["constant", "uniform", "exponential"] = "constant"
    rho: Positive = RHO
    box: tuple[Number, Number] | Annotated[float, Field(ge=0, le=10)] = (1.0, 2.5)
    observe: Literal["all", "prices"] = "all"
    rival: str | None = None

    def make_clock(self, firms: int, rate: Any) -> Clock:
        """The clock of markets with `rate` (M,)."""
        if self.clock == "poisson":
            return Clock.poisson(*(rate * speed for speed in self.speeds_of(firms)))
        if self.clock == "alternating":
            return Clock.alternating(firms, rate)
        return Clock.common(rate) if self.clock == "common" else Clock.common_poisson(rate)

    def speeds_of(self, firms: int) -> tuple[float, ...]:
        """Each firm's factor on the rate of a cell."""
        return self.speeds or (1.0,) * firms

    @property
    def together(self) -> bool:
        """Whether all firms act at each event."""
        return self.clock in ("common", "common-poisson")


class ExplorationSettings(Section):
    """Scale of exploration: from `start` to `end` in a straight line over the share `until` of training, in half
    boxes (continuous prices) or as epsilon in a unit of time (grids). With `half_life` it halves every so many
    units of time instead.
    """

    start: Annotated[float, Field(ge=0, le=10)] = 0.5
    end: Annotated[float, Field(ge=0, le=10)] = 0.02
    until: Annotated[float, Field(gt=0, le=1)] = 0.8
    half_life: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class ControlSettings(Section):
    """Gradient alignment control of every network, agent by agent (see docs of `align`); off unless a mode is named."""

    mode: Literal["off", "observe", "orth", "cap", "ratio", "ramp"] = "off"
    c_low: Annotated[float, Field(ge=0, lt=1)] = 0.05
    c_high: Annotated[float, Field(gt=0, le=1)] = 0.5
    two_sided: bool = False
    max_skips: Annotated[int, Field(ge=0)] = 4
    reference: Literal["raw", "applied"] = "raw"
    on_skip: Literal["update", "keep"] = "update"

    @model_validator(mode="after")
    def _ordered(self) -> ControlSettings:
        if self.c_low >= self.c_high:
            raise ValueError(f"align.c_low = {self.c_low}: must be below align.c_high = {self.c_high}")
        return self


class RunSettings(Section):
    """`events` repricings of a run, all firms together; `seeds` runs a cell, seeded `seed`, `seed` + 1, ...;
    `windows` episodes; `warmup` decisions of a firm before it learns; `evaluate` decisions of a firm, without
    noise, after each window (0: none); `parts` batches trained side by side. Results depend on `parts`, not on how
    many cores there are.
    """

    events: Annotated[int, Field(ge=2, le=1_000_000_000)] = 50_000
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 10
    seed: Annotated[int, Field(ge=0, le=2**62)] = 0
    windows: Annotated[int, Field(ge=1, le=10_000)] = 25
    warmup: Annotated[int, Field(ge=2, le=1_000_000)] = 200
    evaluate: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    parts: Annotated[int, Field(ge=1, le=256)] = 2


class StudySettings(Section):
    """Everything of a run or a sweep."""

    demand: DemandSettings = DemandSettings()
    market: MarketSettings = MarketSettings()
    learner: LearnerSettings = DDPGSettings()
    exploration: ExplorationSettings = ExplorationSettings()
    align: ControlSettings = ControlSettings()
    run: RunSettings = RunSettings()

    @model_validator(mode="after")
    def _possible(self) -> StudySettings:
        runs = len(self.cells) * self.run.seeds
        if self.run.parts > runs:
            raise ValueError(f"run.parts = {self.run.parts}: more parts than the {runs} runs; take at most {runs}")
        if self.run.events < self.run.windows * self.demand.industry().firms:
            raise ValueError(
                f"run.events = {self.run.events}: too few for {self.run.windows} windows; take fewer windows"
            )
        speeds, firms = self.market.speeds, self.demand.industry().firms
        if speeds is not None and (len(speeds) != firms or self.market.clock != "poisson"):
            raise ValueError(
                f"market.speeds = {list(speeds)}: give one for each of {firms} firms, with clock 'poisson'"
            )
        if isinstance(self.learner, SACSettings) and self.learner.average_reward and self.learner.discount == "event":
            raise ValueError("learner.discount = 'event': average reward does not discount; leave the key out")
        return self

    @property
    def cells(self) -> list[tuple[float, float]]:
        """(rate, latency) of each cell, rates first."""
        return [(rate, lag) for rate in self.market.rates for lag in self.market.latencies]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(cell, seed) of each run, by cell, then seed."""
        return [(cell, self.run.seed + k) for cell in range(len(self.cells)) for k in range(self.run.seeds)]

    @property
    def learning(self) -> int:
        """How many firms learn: the first of them, or all."""
        return self.demand.industry().firms if self.market.rival is None else 1

    @property
    def rounds(self) -> int:
        """Rounds of a window: n repricings of each run each."""
        return self.run.events // (self.demand.industry().firms * self.run.windows)

    def benchmark(self) -> Benchmark:
        """Nash and cartel of the industry. Raises SettingsError."""
        return solve(self.demand.industry())

    def scenario(self, cell: int, benchmark: Benchmark, horizon: float) -> Scenario:
        """The market of a cell, for tests that open it again and again."""
        rate, lag = self.cells[cell]
        clock = self.market.make_clock(benchmark.industry.firms, rate)
        box = self.box(benchmark)
        return Scenario(benchmark.industry, clock, Latency(lag, self.market.latency_law), self.market.rho, box, horizon)

    def box(self, benchmark: Benchmark) -> tuple[float, float]:
        """(lowest, highest) price allowed. Raises SettingsError where it makes no sense for the industry."""
        box = self.market.box
        if isinstance(box, float):
            low, high = float(benchmark.nash.prices.min()), float(benchmark.cartel.prices.max())
            box = (low - box * (high - low), high + box * (high - low))
        return check_box(box, benchmark.industry)


def load_study(config: Path | None, overrides: list[str] | None = None) -> StudySettings:
    """Read a TOML file (or take the defaults), apply `section.key=value` overrides, validate. Raises SettingsError,
    one line.
    """
    data = {} if config is None else read_config(config)
    for override in overrides or []:
        _apply(data, override)
    return study_from(data)


def study_from(data: dict[str, Any]) -> StudySettings:
    """Validate a nested dict, the industry and the box included. Raises SettingsError with one line for the first
    thing wrong.
    """
    if isinstance(data.get("learner"), dict) and "algorithm" not in data["learner"]:
        data = {**data, "learner": {"algorithm": "ddpg", **data["learner"]}}
    try:
        study = StudySettings.model_validate(data)
    except ValidationError as error:
        raise SettingsError(_one_line(error)) from None
    benchmark = study.benchmark()
    box = study.box(benchmark)
    if study.market.rival is not None:
        rule(study.market.rival, benchmark, box)
    return study


def _apply(data: dict[str, Any], override: str) -> None:
    (section, key), value = read_override(override, "run.seeds=10", range(2, 3))
    section_of(data, section, override)[key] = value


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    if len(location) > 1 and location[0] == "learner":
        location = [location[0], *location[2:]]  # pydantic names the union's member second
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        return f"{key} = {first['input']!r}: unknown key; remove it"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"].startswith("union_tag"):
        name = first["input"].get("algorithm")
        return f"learner.algorithm = {name!r}: unknown; use ddpg, td3, sac, dqn, ppo or q-learning"
    return f"{key} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
