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
    "optimizer": (lambda run: max(run.glob("versions/*/optimizer.safetensors")).unlink(), "cannot be read"),
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
