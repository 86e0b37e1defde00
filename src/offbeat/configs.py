"""What every settings file and every `--set` has in common: TOML text, `section.key=value`, one line where it is wrong.

Knows no section and no key; what they mean is for the settings that call this.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from offbeat.errors import SettingsError


def read_config(config: Path) -> dict[str, Any]:
    """The contents of a TOML file. Raises SettingsError, one line."""
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"config {config}: no such file; give a TOML file, or none for the default") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"config {config}: not valid TOML ({error}); mend that line") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"config {config}: cannot be read ({error}); give a TOML text file") from None


def read_override(override: str, example: str, depths: range) -> tuple[list[str], Any]:
    """The path and the value of `section.key=value`; what is no TOML value is a string.

    Raises SettingsError, naming `example`, where the path has not one of these numbers of parts."""
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) not in depths or not all(path):
        raise SettingsError(f"--set {override}: not of the form section.key=value; e.g. --set {example}")
    try:
        return path, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return path, text.strip()


def section_of(data: dict[str, Any], part: str, override: str) -> dict[str, Any]:
    """The section `part` of `data`, made if need be. Raises SettingsError where it is a value."""
    section = data.setdefault(part, {})
    if not isinstance(section, dict):
        raise SettingsError(f"--set {override}: {part} is a value, not a section; give section.key=value")
    return section
