"""Taking a run up: what cannot be is refused in one line, and a refusal holds nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from offbeat import wire
from offbeat.errors import RunDirectoryError
from offbeat.live import rundir
from offbeat.live.prompts import PromptBook
from offbeat.tasks import make_task
from tests.live.conftest import finished_run, interrupted_run, settings


def change(statement: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        with closing(sqlite3.connect(run / "run.sqlite", isolation_level=None)) as db:
            db.execute(statement)

    return damage


def lock_is_a_directory(run: Path) -> None:
    (run / "lock").unlink(missing_ok=True)
    (run / "lock").mkdir()


def optimizers_are_gone(run: Path) -> None:
    for file in run.glob("versions/*/optimizer.safetensors"):
        file.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "log is gone": (lambda run: (run / "run.sqlite").unlink(), "holds no run.sqlite"),
    "lock": (lock_is_a_directory, "lock cannot be opened"),
    "settings": (change("UPDATE meta SET value = '{' WHERE key = 'settings'"), "settings cannot be read"),
    "other settings": (change("""UPDATE meta SET value = '{"run": {"sed": 1}}' WHERE key = 'settings'"""), "run.sed"),
    "no events": (change("DROP TABLE events"), "no such table"),
    "other event": (change("""UPDATE events SET body = '{"event": "New"}'"""), "another offbeat"),
    "other commands": (change("UPDATE events SET commands = '[]'"), "leads to other commands"),
    "schema": (change("UPDATE meta SET value = '0' WHERE key = 'schema'"), "schema 0"),
    "versions": (lambda run: shutil.rmtree(run / "versions"), "no usable manifest"),
    "newest and the one before": (optimizers_are_gone, "version 1 before it is no better"),
    "policy": (lambda run: shutil.rmtree(run / "policy"), "policy/config.json is missing"),
}


def held(run: Path) -> list[str]:
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(str(run))]


def test_a_refusal_is_one_line_and_holds_neither_lock_nor_log(tmp_path: Path, policy: Path) -> None:
    whole = interrupted_run(tmp_path / "whole", policy)
    for name, (damage, words) in DAMAGES.items():
        run = tmp_path / name.replace(" ", "-")
        shutil.copytree(whole, run)
        damage(run)
        with pytest.raises(RunDirectoryError, match=words) as caught:
            rundir.take_up(run, print)
        assert "\n" not in str(caught.value), name
        assert held(run) == [], name
    for _ in range(2):
        opened = rundir.take_up(whole, print)
        assert held(whole) != []
        opened.log.close()
        os.close(opened.lock)
        assert held(whole) == []


DAMAGES_OF_ONE: dict[str, Callable[[Path], object]] = {
    "weights": lambda run: spoil(run / "model.safetensors"),
    "optimizer": lambda run: spoil(run / "optimizer.safetensors"),
    "half written": lambda run: os.truncate(run / "model.safetensors", 100),
    "manifest": lambda run: (run / "manifest.json").unlink(),
    "all of it": shutil.rmtree,
}


def spoil(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-8:] = b"nonsense"
    file.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES_OF_ONE)
def test_damage_of_the_newest_version_alone_is_told_and_not_refused(tmp_path: Path, policy: Path, damage: str) -> None:
    """Training can go on from the version before it; nothing is touched yet."""
    run = interrupted_run(tmp_path / "run", policy)
    DAMAGES_OF_ONE[damage](run / "versions" / "000002")
    opened = rundir.take_up(run, print)
    assert "version 2:" in opened.damage or "000002" in opened.damage
    opened.log.close()
    os.close(opened.lock)


def test_a_finished_run_needs_nothing_but_its_log_and_its_model(tmp_path: Path, policy: Path) -> None:
    run = finished_run(tmp_path / "run", policy)
    (run / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (run / "model" / name).touch()
    (run / "parcels").mkdir()
    (run / "parcels" / "5-0.msgpack").touch()
    for left in ("versions", "policy"):
        shutil.rmtree(run / left)
        assert wire.go_on(run, lambda opened: [], print).outcome == "finished"
    assert held(run) == []
    assert not (run / "parcels").exists(), "nothing is ever recovered from them"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "nonsense"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", '{"version": "1.0", "model": {"type": "Nonsense"}}'),
        ("tokenizer_config.json", "["),
        ("config.json", "{"),
    ],
)
def test_a_damaged_policy_is_one_line(policy: Path, name: str, content: str) -> None:
    (policy / name).write_text(content)
    chosen = settings()
    with pytest.raises(RunDirectoryError, match=r"policy.*damaged.*from a copy") as caught:
        PromptBook(make_task(chosen.task, 0), policy, 2)
    assert "\n" not in str(caught.value)
