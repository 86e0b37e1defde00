"""A new run is put in place whole or not at all; code that hangs, places that cannot be: one line, nothing written."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from offbeat.backends.local import Died, Name
from offbeat.backends.messages import Checked, ForeignCall, Prepared, Preparing
from offbeat.errors import OffbeatError, RunDirectoryError, RunFailed, SettingsError, TaskError
from offbeat.live import preparation
from offbeat.live.preparation import CHECKER, PREFIX, PREPARER, create, prepare
from offbeat.settings import load_settings
from tests.live.conftest import Puppets, settings


def quiet(note: str, share: float) -> None:
    pass


def contents(aside: Path, *_: object) -> Prepared:
    """What the preparer leaves, without its work."""
    (aside / "policy").mkdir()
    (aside / "policy" / "config.json").write_text("{}")
    (aside / "versions" / "000000").mkdir(parents=True)
    return Prepared("digest", 1)


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "prepare", contents)


@pytest.mark.usefixtures("instant")
def test_a_run_is_put_in_place_whole_under_the_parents_it_needs(tmp_path: Path) -> None:
    run = tmp_path / "deep" / "er" / "run"
    create(run, settings(), quiet)
    assert sorted(path.name for path in run.iterdir()) == ["lock", "policy", "run.sqlite", "versions"]
    assert stat.S_IMODE(run.stat().st_mode) == 0o777 & ~umask()
    assert list(run.parent.iterdir()) == [run]
    handle = os.open(run / "lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.usefixtures("instant")
def test_everything_is_on_the_disk_before_and_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power may go at any moment: first the content is synced, then the name."""
    synced: list[str] = []

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", sync)
    create(tmp_path / "new" / "run", settings(), quiet)
    aside = [name.partition(PREFIX)[2].partition("/")[2] for name in synced if PREFIX in name]
    assert {"policy/config.json", "policy", "run.sqlite", "versions/000000", "versions", "lock"} <= set(aside)
    assert aside[-1] == "", "the directory itself, last"
    assert synced[len(aside) :] == [str(tmp_path / "new"), str(tmp_path)]


@pytest.mark.usefixtures("instant")
def test_places_where_no_run_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path / "empty")
    for place, words in (
        (tmp_path / "full", "is not empty; choose another"),
        (tmp_path / "file", "is not empty; choose another"),
        (tmp_path / "file" / "run", "cannot be made"),
        (tmp_path / ("a" * 300), "File name too long"),
        (tmp_path / "loop", "cannot be made"),
        (Path(), "name a directory in it"),
        (tmp_path / "empty", "name a directory in it"),
        (Path("/proc"), "is not empty"),
    ):
        with pytest.raises(RunDirectoryError, match=words) as caught:
            create(place, settings(), quiet)
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "full", "loop"]
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.usefixtures("instant")
def test_every_name_that_a_directory_can_have_is_taken(tmp_path: Path) -> None:
    create(tmp_path / ("a" * 255), settings(), quiet)
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty", settings(), quiet)
    assert (tmp_path / "empty" / "run.sqlite").is_file()


def test_the_second_of_two_that_prepare_one_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"

    def beaten(aside: Path, *_: object) -> Prepared:
        run.mkdir()
        (run / "run.sqlite").write_text("the first one's")
        return contents(aside)

    monkeypatch.setattr(preparation, "prepare", beaten)
    with pytest.raises(RunDirectoryError, match="another command made it meanwhile"):
        create(run, settings(), quiet)
    assert (run / "run.sqlite").read_text() == "the first one's"
    assert list(tmp_path.iterdir()) == [run]


def test_what_a_killed_preparation_left_is_swept_and_a_living_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every preparation has the same process number, as in containers."""
    (tmp_path / f"{PREFIX}dead" / "policy").mkdir(parents=True)
    (tmp_path / f"{PREFIX}dead" / "lock").touch()
    (tmp_path / f"{PREFIX}half-swept" / "policy").mkdir(parents=True)
    names: list[str] = []

    def beside(aside: Path, *_: object) -> Prepared:
        names.append(aside.name)
        if len(names) == 1:
            create(tmp_path / "second", settings(), quiet)
        return contents(aside)

    monkeypatch.setattr(preparation, "prepare", beside)
    create(tmp_path / "first", settings(), quiet)
    assert len(set(names)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: str, *overrides: str) -> str:
    """The complaint about a real preparation with a reward of the user's own; nothing is left of it."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "prepared_rewards.py").write_text(reward)
    lines = [json.dumps({"prompt": f"q{i}", "answer": f"{i}"}) for i in range(4)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    task = ("task.name=jsonl", f"task.file={folder / 'data.jsonl'}", "task.reward=prepared_rewards:reward")
    with pytest.raises(OffbeatError) as caught:
        create(tmp_path / "out" / "run", load_settings(None, [*task, "task.held_out=2", *overrides]), quiet)
    assert isinstance(caught.value, TaskError | SettingsError)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["user"]
    return str(caught.value)


HANGS = """
import time
calls = 0

def reward(prompt, answer, response):
    global calls
    calls += 1
    while calls > 2:
        try:
            time.sleep(60)
        except BaseException:
            pass
    return float(response == answer)
"""


def test_a_reward_that_hangs_is_ended_and_named_whatever_it_catches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaint = refused(tmp_path, monkeypatch, HANGS, "task.reward_seconds=0.5")
    assert "the reward of prompt" in complaint
    assert "took more than 0.5 s" in complaint


def prepared_by(puppets: Puppets, script: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """Prepare with workers that say one line of the script (or nothing) every 0.1 s."""
    monkeypatch.setattr(preparation, "LocalBackend", lambda *arguments, **keywords: puppets)
    monkeypatch.setattr(preparation, "fork_server", lambda: None)
    (folder / "workers.log").touch()

    def poll(seconds: float) -> list[tuple[Name, Any]]:
        time.sleep(0.1)
        line = script.pop(0) if script else None
        return [(PREPARER if isinstance(line, Prepared) else CHECKER, line)] if line else []

    monkeypatch.setattr(puppets, "poll", poll)
    return prepare(folder, settings(), quiet, 0)


def test_each_call_has_its_own_time(tmp_path: Path, puppets: Puppets, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound reward that takes most of its time does not hang, however often it is called; the last call may."""
    script = [ForeignCall(0.25, f"call {i} hangs") for i in range(6)]
    with pytest.raises(TaskError, match="call 5 hangs"):
        prepared_by(puppets, [*script, None, None, None, Checked(), Prepared("too late", 1)], tmp_path, monkeypatch)


def test_nothing_is_timed_that_is_not_foreign(
    tmp_path: Path, puppets: Puppets, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [ForeignCall(0.15, "hangs"), Preparing("checked", 0.0), None, None, None, Died("power")]
    with pytest.raises(RunFailed, match="power"):
        prepared_by(puppets, script, tmp_path, monkeypatch)


def test_an_answer_that_lies_there_was_in_time_however_late_it_is_read(
    tmp_path: Path, puppets: Puppets, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [ForeignCall(0.05, "hangs"), Checked(), Prepared("digest", 1)]
    assert prepared_by(puppets, script, tmp_path, monkeypatch).digest == "digest"
