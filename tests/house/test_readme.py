"""The README does not lie: its commands run, its settings load, its links exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from offbeat.settings import load_settings, settings_from

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_every_command_runs(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    assert len(commands) >= 5
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    (python,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", python], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_settings_block_and_example_loads() -> None:
    for text in blocks("toml"):
        settings_from(tomllib.loads(text))
    examples = sorted((ROOT / "examples").glob("*.toml"))
    assert examples
    for example in examples:
        load_settings(example)


def test_make_targets_exist() -> None:
    targets = re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)
    assert targets == ["train", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+?)\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert (ROOT / target).exists(), target
