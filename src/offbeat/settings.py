"""Validated settings: TOML and `--set section.key=value` in, one frozen object out.

A wrong setting is one line that names key, value and remedy (SettingsError, exit code 2) and nothing is written.
Derived values are properties. This file knows no torch and starts nothing.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from offbeat.errors import SettingsError
from offbeat.settings_rules import impossible
from offbeat.settings_sections import (
    LearnerSettings,
    ModelSettings,
    RolloutSettings,
    RunSettings,
    ScheduleSettings,
)
from offbeat.task_settings import (
    AdditionTask,
    CountingTask,
    JsonlTask,
    ReasoningGymTask,
    RunningSumTask,
    Section,
    TaskSettings,
)

__all__ = [
    "AdditionTask",
    "CountingTask",
    "JsonlTask",
    "LearnerSettings",
    "ModelSettings",
    "ReasoningGymTask",
    "RolloutSettings",
    "RunSettings",
    "RunningSumTask",
    "ScheduleSettings",
    "Settings",
    "TaskSettings",
    "load_settings",
    "settings_from",
]


class Settings(Section):
    model: ModelSettings = ModelSettings()
    task: TaskSettings = CountingTask()
    rollout: RolloutSettings = RolloutSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    learner: LearnerSettings = LearnerSettings()
    run: RunSettings = RunSettings()

    @model_validator(mode="after")
    def _possible(self) -> Settings:
        for problem in impossible(self.schedule, self.rollout, self.learner, self.task):
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
    if len(location) > 1 and location[0] == "task":
        return "name, held_out, reward_seconds and those of the chosen task"
    for part in location[:-1]:
        node = node.model_fields[part].annotation
    return ", ".join(node.model_fields)
