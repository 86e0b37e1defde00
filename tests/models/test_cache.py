from __future__ import annotations

import threading
from pathlib import Path

import pytest

from offbeat.errors import SettingsError, TaskError
from offbeat.models import cache
from offbeat.models.cache import DIGESTS, cached, intact


class Maker:
    """Writes two files and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, directory: Path) -> None:
        assert list(directory.iterdir()) == []
        self.calls += 1
        (directory / "weights").write_bytes(b"w" * 1000)
        (directory / "config.json").write_text("{}")


def _silent() -> None:
    pass


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    maker = Maker()
    first = cached(tmp_path / "new", "key", maker, _silent)
    assert cached(tmp_path / "new", "key", maker, _silent) == first == tmp_path / "new" / "key"
    assert maker.calls == 1
    assert intact(first)
    assert {path.name for path in first.iterdir()} == {"weights", "config.json", DIGESTS}


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "weights").write_bytes(b"w" * 999 + b"x"),
        lambda entry: (entry / "weights").unlink(),
        lambda entry: (entry / "stray").write_text(""),
        lambda entry: (entry / DIGESTS).unlink(),
        lambda entry: (entry / DIGESTS).write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_entry_is_made_anew(damage: object, tmp_path: Path) -> None:
    maker = Maker()
    entry = cached(tmp_path, "key", maker, _silent)
    assert callable(damage)
    damage(entry)
    assert not intact(entry)
    assert intact(cached(tmp_path, "key", maker, _silent))
    assert maker.calls == 2


def test_a_file_in_the_place_of_an_entry_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("not a directory")
    assert intact(cached(tmp_path, "key", Maker(), _silent))


def test_a_failure_leaves_no_entry_and_no_debris(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("")
        raise TaskError("cannot be learned")

    with pytest.raises(TaskError, match="cannot be learned"):
        cached(tmp_path, "key", fail, _silent)
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]


def test_what_a_killed_process_left_behind_is_cleared_away(tmp_path: Path) -> None:
    debris = tmp_path / "key.part-abc"
    debris.mkdir()
    other = tmp_path / "key2.part-abc"
    other.mkdir()
    cached(tmp_path, "key", Maker(), _silent)
    assert not debris.exists()
    assert other.exists()


def test_two_makers_at_once_make_one_entry(tmp_path: Path) -> None:
    """The second arrives while the first is making, waits, and finds the entry whole."""
    begun, finish, waiting = threading.Event(), threading.Event(), threading.Event()
    maker = Maker()

    def slow(directory: Path) -> None:
        begun.set()
        assert finish.wait(20)
        maker(directory)

    def second() -> None:
        assert intact(cached(tmp_path, "key", maker, waiting.set))

    threads = [threading.Thread(target=cached, args=(tmp_path, "key", slow, _silent)), threading.Thread(target=second)]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    assert waiting.wait(20)
    assert not (tmp_path / "key").exists()
    finish.set()
    for thread in threads:
        thread.join(20)
    assert maker.calls == 1
    assert intact(tmp_path / "key")


def test_a_cache_that_cannot_be_written_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache.tempfile, "mkdtemp", refuse)
    with pytest.raises(SettingsError, match="XDG_CACHE_HOME"):
        cached(tmp_path, "key", Maker(), _silent)
