"""Validated settings: TOML and `--set section.key=value` in, one frozen object out.

A wrong setting is one line that names key, value and remedy (SettingsError, exit code 2) and nothing is written.
Derived values are properties. This file knows no torch and starts nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError, model_validator

from offbeat.configs import read_config, read_override, section_of
from offbeat.errors import SettingsError
from offbeat.objectives import NAMES
from offbeat.settings_rules import impossible
from offbeat.settings_sections import (
    LearnerSettings,
    LoraSettings,
    ModelSettings,
    RaySettings,
    RolloutSettings,
    RunSettings,
    ScheduleSettings,
    no_ray_address,
)
from offbeat.task_settings import (
    TASKS,
    AdditionTask,
    CountingTask,
    EpisodesTask,
    JsonlTask,
    PythonToolTask,
    ReasoningGymTask,
    RunningSumTask,
    Section,
    TaskSettings,
    TextArenaTask,
    VerifiersTask,
)

__all__ = [
    "AdditionTask",
    "CountingTask",
    "EpisodesTask",
    "JsonlTask",
    "LearnerSettings",
    "LoraSettings",
    "ModelSettings",
    "PythonToolTask",
    "RaySettings",
    "ReasoningGymTask",
    "RolloutSettings",
    "RunSettings",
    "RunningSumTask",
    "ScheduleSettings",
    "Settings",
    "TaskSettings",
    "TextArenaTask",
    "VerifiersTask",
    "Where",
    "load_settings",
    "no_ray_address",
    "settings_from",
]


class Settings(Section):
    model: ModelSettings = ModelSettings()
    task: TaskSettings = CountingTask()
    rollout: RolloutSettings = RolloutSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    learner: LearnerSettings = LearnerSettings()
    run: RunSettings = RunSettings()
    ray: RaySettings = RaySettings()

    @model_validator(mode="after")
    def _possible(self) -> Settings:
        for problem in impossible(self.schedule, self.rollout, self.learner, self.task, self.model):
            raise ValueError(problem)
        return self


class Where(NamedTuple):
    """Where a session's lanes and learner run, and in how many processes the learner does, if not as the run's settings
    say; it changes nothing of what they do, but for the order in which several processes add up."""

    backend: str | None = None
    address: str | None = None
    processes: int | None = None

    def of(self, settings: Settings) -> Settings:
        """The settings of this session. Raises SettingsError."""
        given = settings.model_dump(mode="json")
        if self.address and (self.backend or settings.run.backend) != "ray":
            raise SettingsError(f"--address {self.address}: this run's backend is not Ray; add --backend ray")
        given["run"] |= {"backend": self.backend} if self.backend else {}
        given["ray"] |= {"address": self.address} if self.address is not None else {}
        if self.processes is not None:
            given["learner"]["processes"] = self.processes
            given["learner"] |= {"sharding": "none"} if self.processes == 1 else {}
        return settings_from(given)


def load_settings(config: Path | None, overrides: list[str] | None = None) -> Settings:
    """Read a TOML file (or the built-in default), apply `section.key=value` overrides, validate.

    Raises SettingsError with one line for anything wrong.
    """
    data = {} if config is None else read_config(config)
    for override in overrides or []:
        _apply(data, override)
    return settings_from(data)


def settings_from(data: dict[str, Any]) -> Settings:
    """Validate a nested dict. Raises SettingsError with one line for the first thing wrong."""
    data = dict(data)
    if isinstance(data.get("task"), dict) and "name" not in data["task"]:
        data["task"] = {"name": CountingTask().name, **data["task"]}
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsError(_one_line(error)) from None
    _no_switch_is_a_number(data, settings, "")
    return settings


def _no_switch_is_a_number(data: dict[str, Any], section: BaseModel, path: str) -> None:
    """Raises SettingsError for true and false where a number was meant: they would count as 1 and 0."""
    for key, given in data.items():
        taken = getattr(section, key, None)
        if isinstance(given, dict) and isinstance(taken, BaseModel):
            _no_switch_is_a_number(given, taken, f"{path}{key}.")
        elif isinstance(given, bool) and isinstance(taken, int | float) and not isinstance(taken, bool):
            raise SettingsError(f"{path}{key} = {str(given).lower()}: a number is meant; give one")


def _apply(data: dict[str, Any], override: str) -> None:
    path, value = read_override(override, "learner.iterations=50", range(2, 100))
    node = data
    for part in path[:-1]:
        if part == "objective" and isinstance(node.get(part), str):
            node[part] = {"name": node[part]}
        node = section_of(node, part, override)
    if path == ["learner", "objective"] and isinstance(node.get("objective"), dict) and isinstance(value, str):
        value = node["objective"] | {"name": value}
    node[path[-1]] = value


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    for union in (["task"], ["learner", "objective"]):  # pydantic names the union's member after the union
        if location[: len(union)] == union and len(location) > len(union):
            del location[len(union)]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        remedy = f"write {meant}" if (meant := _meant(location)) else f"remove it (known keys: {_known(location)})"
        return f"{key} = {first['input']!r}: unknown key; {remedy}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"].startswith("union_tag"):
        name = first["input"].get("name")
        if location[0] == "learner":
            return f"learner.objective = {name!r}: unknown objective; use {', '.join(NAMES[:-1])} or {NAMES[-1]}"
        return f"task.name = {name!r}: unknown task; use {', '.join(TASKS[:-1])} or {TASKS[-1]}"
    if first["type"] == "missing":
        return f"{key}: missing; add it"
    value = first["input"]
    if first["type"] == "too_short":
        return f"{key} = {value!r}: give at least {first['ctx']['min_length']}"
    if first["type"] == "model_type":
        return f"{key} = {value!r}: a section is meant; write [{key}] and keys below it, or --set {key}.key=value"
    return f"{key} = {value!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _known(location: list[str]) -> str:
    node: Any = Settings
    if location[:2] == ["learner", "objective"] and len(location) > 2:
        return "name and those of the chosen objective, docs/objectives.md"
    if len(location) > 1 and location[0] == "task":
        return "name, held_out, reward_seconds and those of the chosen task"
    for part in location[:-1]:
        node = node.model_fields[part].annotation
    return ", ".join(node.model_fields)


def _meant(location: list[str]) -> str | None:
    """The key of that name in another section, or the one that is written nearly so."""
    from difflib import get_close_matches

    sections = {name: field.annotation for name, field in Settings.model_fields.items()}
    keys = [
        f"{name}.{key}"
        for name, section in sections.items()
        if isinstance(section, type) and issubclass(section, BaseModel)
        for key in section.model_fields
    ]
    elsewhere = [key for key in keys if key.split(".")[1] == location[-1]]
    alike = get_close_matches(".".join(location), keys, 1, 0.85) if len(location) == 2 else []
    return next(iter(elsewhere or alike), None)
