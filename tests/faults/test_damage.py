"""A run whose files were damaged while it slept is refused at once, in one line that says what and what to do."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from .conftest import Trial, kill, noise


def spoil(file: Path, start: int, length: int) -> None:
    """Overwrite some bytes with noise; the size stays."""
    content = bytearray(file.read_bytes())
    content[start : start + length] = random.Random(0).randbytes(length)
    file.write_bytes(content)


def newest(run: Path) -> Path:
    return max(path for path in (run / "versions").iterdir() if path.name.isdigit())


def spoil_log(run: Path) -> None:
    for beside in ("run.sqlite-wal", "run.sqlite-shm"):
        (run / beside).unlink(missing_ok=True)
    spoil(run / "run.sqlite", (run / "run.sqlite").stat().st_size // 2, 8192)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "policy": (lambda run: shutil.rmtree(run / "policy"), "policy/config.json is missing"),
    "weights": (lambda run: spoil(newest(run) / "model.safetensors", 4000, 100), "the file is"),
    "optimizer": (
        lambda run: spoil(newest(run) / "optimizer.safetensors", 40_000, 64),
        "optimizer.safetensors is damaged",
    ),
    "manifest": (lambda run: (newest(run) / "manifest.json").unlink(), "no usable manifest"),
    "log": (spoil_log, "run.sqlite cannot be read"),
    "empty log": (lambda run: (run / "run.sqlite").write_bytes(b""), "run.sqlite cannot be read"),
}


def test_damage_is_found_before_training_goes_on(trial: Trial, tmp_path: Path) -> None:
    process = trial.begin(*noise(trial), "learner.iterations=400")
    trial.wait_for_version(12, process)
    kill(process)
    whole = trial.directory
    for name, (damage, words) in DAMAGES.items():
        copy = tmp_path / name.replace(" ", "-")
        shutil.copytree(whole, copy)
        damage(copy)
        before = sorted(path.name for path in (copy / "versions").iterdir())
        trial.directory = copy
        refused = trial.resume()
        _, err = refused.communicate(timeout=60)
        lines = err.strip().splitlines()
        assert refused.returncode == 2, (name, err)
        assert len(lines) == 1, (name, err)
        assert words in lines[0], (name, err)
        assert "from a copy" in lines[0], (name, err)
        assert sorted(path.name for path in (copy / "versions").iterdir()) == before, name
    trial.directory = whole
