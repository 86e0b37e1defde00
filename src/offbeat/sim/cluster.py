"""A cluster file: what a simulation is about. TOML in, one frozen object out; wrong input is one line (SettingsError).

Sizes are counted in trajectories, accelerators and tokens, times in seconds. Presets are cluster files that come with
offbeat, `offbeat/sim/presets`; their comments say where each number comes from. This file starts nothing.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from offbeat.configs import read_override, section_of
from offbeat.errors import SettingsError
from offbeat.flow.plan import Plan
from offbeat.sim.costs import Decode, Faults, Prefill, Publish, Scoring, Tools, Training, Transfer
from offbeat.sim.lengths import LengthSettings
from offbeat.task_settings import Positive, Seconds, Section

MOST_LANES = 1 << 16
MOST_OUTSTANDING = 1 << 22
"""What is simulated one by one: more would take hours and all memory."""
NEVER = 1e12
"""Seconds: leases and stalls are for processes that hang, and nothing hangs here."""
COLOCATED = frozenset({"sync", "partial"})
"""Schedules whose lanes and learner take turns, so each of them may have all accelerators."""
ScheduleName = Literal["multi-version", "sync", "one-step-off", "partial", "in-flight", "repack"]


class ScheduleSection(Section):
    """What a live run has under [schedule]. Where `rollout_batch_size` does not say how much is outstanding,
    `over_dispatch` does: trajectories in rollout for each one of a batch, besides the batch that the learner has
    (RBS / TBS = 1 + over_dispatch). `over_issue` is the same for partial, whose learner has none meanwhile."""

    group_size: int = Field(16, ge=2, le=1024)
    train_batch_size: Positive = 8192
    max_staleness: int = Field(3, ge=0, le=64)
    max_versions: Positive = 1
    over_dispatch: float = Field(1.0, ge=1, le=64)
    over_issue: float = Field(1.2, ge=1, le=64)
    rollout_batch_size: Positive | None = None
    at_bound: Literal["drain", "evict"] = "drain"
    migration: Literal["cache", "prefill", "off"] = "cache"
    legacy_fill: bool = False
    rebalance_seconds: Seconds = 60.0


class RunSection(Section):
    iterations: Positive = 20
    warmup: int = Field(5, ge=0)
    """Iterations at the start that the averages leave out."""
    seed: int = Field(0, ge=0)


class Cluster(Section):
    """Accelerators, how they are split, what work costs on them, and the work.

    A lane is the unit that holds one version: a replica, or an expert-parallel group. `slots` and `cache_tokens` are
    those of one lane.
    """

    name: str = "cluster"
    accelerators: Positive
    lane_accelerators: Positive = 1
    learner_share: float = Field(0.5, gt=0, lt=1)
    """Share of the accelerators that only train, under schedules whose lanes and learner work side by side."""
    takes_turns: bool = True
    """Have lanes and learner of sync and partial all accelerators in turn? Else they are split as for the others."""
    slots: Positive | None = None
    """Without a value a lane's even share of all that may be in rollout."""
    cache_tokens: Positive | None = None
    decode: Decode
    prefill: Prefill = Prefill()
    training: Training
    publish: Publish = Publish()
    transfer: Transfer = Transfer()
    scoring: Scoring = Scoring()
    tools: Tools = Tools()
    faults: Faults = Faults()
    lengths: LengthSettings = LengthSettings()
    schedule: ScheduleSection = ScheduleSection()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _possible(self) -> Cluster:
        for problem in _impossible(self):
            raise ValueError(problem)
        return self

    def learner_accelerators(self, schedule: str) -> int:
        if self._takes_turns(schedule):
            return self.accelerators
        return self.accelerators - self.lanes(schedule) * self.lane_accelerators

    def lanes(self, schedule: str) -> int:
        """As many whole lanes as fit beside the learner."""
        left = self.accelerators
        if not self._takes_turns(schedule):
            left = round(self.accelerators * (1 - self.learner_share))
        return left // self.lane_accelerators

    def _takes_turns(self, schedule: str) -> bool:
        return self.takes_turns and schedule in COLOCATED

    def outstanding_limit(self, schedule: str) -> int:
        """Trajectories outstanding at most, the batch in training included."""
        s = self.schedule
        bound = staleness_bound(schedule, s.max_staleness)
        if s.rollout_batch_size is not None:
            return min(s.rollout_batch_size, (bound + 1) * s.train_batch_size)
        if schedule == "partial":  # nothing is issued while it trains
            groups = round(s.over_issue * s.train_batch_size / s.group_size)
            return groups * s.group_size
        groups = round((1 + s.over_dispatch) * s.train_batch_size / s.group_size)
        limit = groups * s.group_size
        return limit if schedule in {"repack", "in-flight"} else min(limit, (bound + 1) * s.train_batch_size)

    def lane_slots(self, schedule: str) -> int:
        if self.slots is not None:
            return self.slots
        s = self.schedule
        overlapping = schedule not in {"sync", "partial", "one-step-off"}
        in_rollout = self.outstanding_limit(schedule) - (s.train_batch_size if overlapping else 0)
        return -(-max(in_rollout, s.train_batch_size) // (self.lanes(schedule) * s.group_size)) * s.group_size

    def plan(self, schedule: str) -> Plan:
        """What the scheduler is told, the same as in a live run."""
        s = self.schedule
        splices = schedule in {"partial", "in-flight"}
        return Plan(
            group_size=s.group_size,
            batch_size=s.train_batch_size,
            outstanding_limit=self.outstanding_limit(schedule),
            bound=staleness_bound(schedule, s.max_staleness),
            live_versions=1 if schedule == "repack" else max(2, s.max_versions) if splices else s.max_versions,
            iterations=self.run.iterations,
            schedule=schedule,
            lanes=self.lanes(schedule),
            migration=s.migration,
            legacy_fill=s.legacy_fill,
            evicts=s.at_bound == "evict" and schedule == "multi-version",
            rebalance_seconds=s.rebalance_seconds,
            cache_tokens=self.cache_tokens,
            lease_seconds=NEVER,
            stall_seconds=NEVER,
            max_attempts=1_000_000,
        )


def staleness_bound(schedule: str, max_staleness: int) -> int:
    return {"sync": 0, "one-step-off": 1}.get(schedule, max_staleness)


def _impossible(c: Cluster) -> list[str]:
    """What cannot work, most basic first: key, value, remedy."""
    problems = []
    s = c.schedule
    if c.lanes("multi-version") < 1:
        problems.append(
            f"lane_accelerators = {c.lane_accelerators}: no lane fits beside the learner's"
            f" {c.learner_share:.0%} of {c.accelerators} accelerators; lower it or learner_share"
        )
    if c.lanes("multi-version") > MOST_LANES:
        problems.append(
            f"accelerators = {c.accelerators}: {c.lanes('multi-version'):,} lanes of {c.lane_accelerators} are more"
            f" than the {MOST_LANES:,} that can be simulated; lower it or raise lane_accelerators"
        )
    elif c.outstanding_limit("multi-version") > MOST_OUTSTANDING:
        problems.append(
            f"schedule.train_batch_size = {s.train_batch_size}: {c.outstanding_limit('multi-version'):,} trajectories"
            f" at once are more than the {MOST_OUTSTANDING:,} that can be simulated; lower it"
        )
    if s.train_batch_size % s.group_size:
        problems.append(
            f"schedule.train_batch_size = {s.train_batch_size} is not a multiple of schedule.group_size ="
            f" {s.group_size}; set {max(1, round(s.train_batch_size / s.group_size)) * s.group_size}"
        )
    rbs = s.rollout_batch_size
    if rbs is not None and rbs < s.train_batch_size:
        problems.append(
            f"schedule.rollout_batch_size = {rbs} is less than schedule.train_batch_size = {s.train_batch_size}: no"
            f" batch could ever fill; set at least {s.train_batch_size}"
        )
    longest = c.lengths.cap + c.lengths.prompt_tokens
    if c.cache_tokens is not None and c.cache_tokens < longest:
        problems.append(
            f"cache_tokens = {c.cache_tokens} is less than the longest prompt + response ({longest} tokens), which"
            " would never fit; raise it or lower lengths.cap"
        )
    if c.run.warmup >= c.run.iterations:
        problems.append(
            f"run.warmup = {c.run.warmup} leaves none of run.iterations = {c.run.iterations}; lower it or raise these"
        )
    return problems


def preset_names() -> list[str]:
    directory = resources.files("offbeat.sim").joinpath("presets")
    return sorted(f.name.removesuffix(".toml") for f in directory.iterdir() if f.name.endswith(".toml"))


def load_cluster(name: str, overrides: list[str] | None = None) -> Cluster:
    """A preset by its name or a TOML file by its path, with `section.key=value` (or `key=value`) overrides applied.

    Raises SettingsError with one line for anything wrong.
    """
    file = Path(name)
    try:
        if name in preset_names():
            text = resources.files("offbeat.sim").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")
        else:
            text = file.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except FileNotFoundError:
        names = ", ".join(preset_names())
        raise SettingsError(f"cluster {name}: no such file or preset; give a TOML file or one of {names}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"cluster {name}: not valid TOML ({error}); mend that line") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cluster {name}: cannot be read ({error}); give a TOML text file") from None
    for override in overrides or []:
        _apply(data, override)
    return cluster_from(data)


def cluster_from(data: dict[str, Any]) -> Cluster:
    """Validate a nested dict. Raises SettingsError with one line for the first thing wrong."""
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise SettingsError(_one_line(error)) from None


def changed(cluster: Cluster, **values: Any) -> Cluster:
    """The cluster with other values; sections are given as dicts of what changes. Example:
    changed(c, accelerators=128, schedule={"max_staleness": 1})"""
    data = cluster.model_dump()
    for key, value in values.items():
        data[key] = data[key] | value if isinstance(value, dict) else value
    return cluster_from(data)


def overridden(cluster: Cluster, overrides: list[str]) -> Cluster:
    """The cluster with `section.key=value` overrides applied. Raises SettingsError."""
    data = cluster.model_dump()
    for override in overrides:
        _apply(data, override)
    return cluster_from(data)


def _apply(data: dict[str, Any], override: str) -> None:
    path, value = read_override(override, "schedule.max_staleness=2", range(1, 100))
    for part in path[:-1]:
        data = section_of(data, part, override)
    data[path[-1]] = value


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "value_error":
            return str(first["ctx"]["error"])
        case "missing":
            return f"{key}: missing; add it (the presets show every section: {', '.join(preset_names())})"
        case "extra_forbidden":
            return f"{key} = {first['input']!r}: unknown key; remove it"
        case "model_type":
            return f"{key} = {first['input']!r}: a section is meant; write [{key}] and keys below it"
        case _:
            return f"{key} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
