"""Validated settings: TOML and `--set section.key=value` in, one frozen object out.

A wrong setting is one line that names key, value and remedy (SettingsError, exit code 2) and nothing is written.
Derived values are properties. This file knows no torch and starts nothing.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from offbeat.errors import SettingsError
from offbeat.settings_rules import SPLICING, impossible
from offbeat.task_settings import (
    MOST,
    AdditionTask,
    CountingTask,
    JsonlTask,
    Positive,
    ReasoningGymTask,
    RunningSumTask,
    Seconds,
    Section,
    TaskSettings,
)

Count = Annotated[int, Field(ge=0, le=MOST)]

__all__ = [
    "AdditionTask",
    "CountingTask",
    "JsonlTask",
    "ReasoningGymTask",
    "RunningSumTask",
    "Settings",
    "TaskSettings",
    "load_settings",
    "settings_from",
]


class ModelSettings(Section):
    """The policy: a Hugging Face directory (`path`), or a preset built and warm-started here."""

    path: str = ""
    preset: Literal["nano", "micro"] = "nano"
    warm_start_target: float = Field(0.05, ge=0, le=1)
    """The supervised phase ends once this share of samples is expected to match exactly. Presets only."""
    warm_start_max_steps: Positive = 1500
    warm_start_learning_rate: float = Field(2e-3, gt=0)
    warm_start_batch_size: Positive = 64


class RolloutSettings(Section):
    """How responses are sampled. All of it is part of what the behaviour policy is."""

    lanes: int = Field(1, ge=1, le=64)
    """Rollout units, each with `slots` slots of its own."""
    lanes_per_process: int = Field(1, ge=1, le=64)
    """Lanes that share one process and its engine."""
    slots: int = Field(64, ge=1, le=4096)
    cache_tokens: Positive | None = None
    """Tokens of keys and values a lane may hold; beyond them responses are parked. Without a value slots x context."""
    max_new_tokens: Positive = 168
    context: Positive = 192
    """Longest prompt + response in tokens."""
    temperature: float = Field(1.0, gt=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: Count = 0

    @property
    def processes(self) -> int:
        return -(-self.lanes // self.lanes_per_process)


class ScheduleSettings(Section):
    """Who runs when. Sizes are counted in trajectories."""

    name: Literal["multi-version", "sync", "one-step-off", "partial", "in-flight", "repack"] = "multi-version"
    max_staleness: int = Field(2, ge=0, le=64)
    max_versions: Positive | None = None
    """Versions alive in a lane at once; without a value K + 1, which never binds (2 at least where versions splice)."""
    group_size: Positive = 8
    train_batch_size: Positive = 128
    rollout_batch_size: Positive | None = None
    """Trajectories outstanding at most; without a value (K + 1) x train_batch_size, the most that C3 allows."""

    at_bound: Literal["drain", "evict"] = "drain"
    """What multi-version does at the bound: hold the next batch back until the oldest are finished, so that nothing is
    dropped, or give up what is too old and queue its prompt again (which costs C2, and favours short responses)."""
    migration: Literal["cache", "prefill", "off"] = "cache"
    """How responses under way move between lanes: with their keys and values, computing these again, or never."""
    legacy_fill: bool = True
    """May new groups start under an older version that a lane still holds? Never under the oldest."""
    rebalance_seconds: Seconds = 5.0
    """Lanes are divided among versions anew after so long, besides after every publish."""

    @property
    def staleness_bound(self) -> int:
        """What C3 promises. `partial` and `in-flight` promise nothing: for them it only sizes what is in hand."""
        return {"sync": 0, "one-step-off": 1}.get(self.name, self.max_staleness)

    @property
    def live_versions(self) -> int:
        if self.name == "repack":
            return 1
        return self.max_versions or max(self.staleness_bound + 1, 2 if self.name in SPLICING else 1)

    @property
    def outstanding_limit(self) -> int:
        return self.rollout_batch_size or (self.staleness_bound + 1) * self.train_batch_size


class LearnerSettings(Section):
    """One RL iteration: group-relative advantages, the clipped ratio, AdamW."""

    iterations: Positive = 600
    learning_rate: float = Field(3.5e-4, gt=0, lt=1)
    warmup_iterations: Count = 5
    final_learning_rate_share: float = Field(0.1, ge=0, le=1)
    """The rate falls linearly to this share of itself at the last iteration; 1 keeps it constant."""
    weight_decay: float = Field(0.0, ge=0, le=1)
    max_gradient_norm: float = Field(1.0, gt=0)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    aggregation: Literal["token", "sequence"] = "token"
    """`token`: mean over all tokens of the batch; `sequence`: mean over trajectories of each one's token mean."""
    normalise_advantage: bool = True
    """Divide the group-relative advantage by the group's standard deviation."""
    updates_per_iteration: Positive = 1
    micro_batch_tokens: Positive = 8192
    """Padded tokens in one forward pass; larger batches accumulate gradients."""
    max_consecutive_skips: Positive = 5


class RunSettings(Section):
    """The run itself: seed, limits, leases, what is kept."""

    seed: Count = 0
    threads: Positive = 1
    evaluate_every: Count = 100
    """Held-out evaluation every so many iterations; 0: before and after only."""
    time_limit_seconds: Seconds | None = None
    lease_seconds: Seconds = 60.0
    """A trajectory without a new token for so long is restarted."""
    stall_seconds: Seconds = 180.0
    """The run fails, naming the culprit, when nothing at all progressed for so long."""
    max_attempts: Positive = 4
    max_quarantined_in_a_row: Positive = 8
    keep_versions: int = Field(8, ge=1)
    """Newest retired versions whose weights stay on disk, for `verify --recompute`."""


class Settings(Section):
    model: ModelSettings = ModelSettings()
    task: TaskSettings = CountingTask()
    rollout: RolloutSettings = RolloutSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    learner: LearnerSettings = LearnerSettings()
    run: RunSettings = RunSettings()

    @model_validator(mode="after")
    def _possible(self) -> Settings:
        for problem in impossible(self):
            raise ValueError(problem)
        return self


def load_settings(config: Path | None, overrides: list[str] | None = None) -> Settings:
    """Read a TOML file (or the built-in default), apply `section.key=value` overrides, validate.

    Raises SettingsError with one line for anything wrong.
    """
    data: dict[str, Any] = {}
    if config is not None:
        try:
            data = tomllib.loads(config.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SettingsError(f"config {config}: no such file; give a TOML file, or none for the default") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"config {config}: cannot be read ({error}); give a TOML text file") from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"config {config}: not valid TOML ({error}); mend that line") from None
    for override in overrides or []:
        _apply(data, override)
    return settings_from(data)


def settings_from(data: dict[str, Any]) -> Settings:
    """Validate a nested dict. Raises SettingsError with one line for the first thing wrong."""
    data = dict(data)
    if isinstance(data.get("task"), dict) and "name" not in data["task"]:
        data["task"] = {"name": CountingTask().name, **data["task"]}
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsError(_one_line(error)) from None


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2 or not all(path):
        raise SettingsError(f"--set {override}: not of the form section.key=value; e.g. --set learner.iterations=50")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    node = data
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise SettingsError(f"--set {override}: {part} is a value, not a section; give section.key=value")
    node[path[-1]] = value


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    if len(location) > 1 and location[0] == "task":
        location = [location[0], *location[2:]]  # pydantic names the union's member second
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        return f"{key} = {first['input']!r}: unknown key; remove it (known keys: {_known(location)})"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"].startswith("union_tag"):
        name = first["input"].get("name")
        return f"task.name = {name!r}: unknown task; use running-sum, counting, addition, reasoning-gym or jsonl"
    if first["type"] == "missing":
        return f"{key}: missing; add it"
    value = first["input"]
    if first["type"] == "model_type":
        return f"{key} = {value!r}: a section is meant; write [{key}] and keys below it, or --set {key}.key=value"
    return f"{key} = {value!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _known(location: list[str]) -> str:
    node: Any = Settings
    if len(location) > 1 and location[0] != "task":
        field = Settings.model_fields.get(location[0])
        node = field.annotation if field else Settings
    elif len(location) > 1:
        return "name, held_out, reward_seconds and those of the chosen task"
    return ", ".join(node.model_fields)
