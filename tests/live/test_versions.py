"""What stays of the versions: version 0, live ones, the newest retired ones, optimizer state to go on from."""

from __future__ import annotations

import shutil
from pathlib import Path

from offbeat.backends.weights import version_directory
from offbeat.live.versions import VersionShelf

FILES = ("model.safetensors", "manifest.json", "optimizer.safetensors")


def shelf_of(run: Path, *versions: int, keep: int = 2) -> VersionShelf:
    """A shelf whose log has these versions, from 0 on, all of which lie there."""
    shelf = VersionShelf(run, keep, "0")
    for version in versions:
        shelf.publish(version, str(version))
        written(run, version)
    return shelf


def written(run: Path, version: int) -> None:
    version_directory(run, version).mkdir(parents=True)
    for name in FILES:
        (version_directory(run, version) / name).touch()


def shown(run: Path) -> dict[int, int]:
    """Versions on disk and how many files each has: two without its optimizer."""
    return {int(path.name): len(list(path.iterdir())) for path in sorted((run / "versions").iterdir())}


def test_the_newest_retired_ones_stay_without_their_optimizer(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path, 0, 1, 2, 3, 4)
    for version in (0, 1, 2):
        shelf.retire(version)
    assert shown(tmp_path) == {0: 2, 1: 2, 2: 2, 3: 3, 4: 3}
    shelf.retire(3)
    assert shown(tmp_path) == {0: 2, 2: 2, 3: 3, 4: 3}, "the one before the newest keeps its optimizer"


def test_an_optimizer_goes_also_where_its_version_was_retired_while_it_was_needed(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path, 0)
    for version in range(1, 5):
        written(tmp_path, version)
        (version_directory(tmp_path, version) / "shards").mkdir()
        shelf.publish(version, str(version))
        shelf.retire(version - 1)
    assert shown(tmp_path) == {0: 2, 2: 2, 3: 4, 4: 4}


def test_the_same_stays_when_a_run_is_taken_up(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path, 0, 1, 2, 3, 4)
    for version in (0, 1, 2):
        shelf.forget(version)
    shelf.sweep()
    assert shown(tmp_path) == {0: 2, 1: 2, 2: 2, 3: 3, 4: 3}


def test_what_was_written_but_never_logged_goes(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path, 0, 1)
    written(tmp_path, 2)
    (tmp_path / "versions" / ".000003.writing").mkdir()
    (tmp_path / "versions" / "of-the-user").mkdir()
    shelf.sweep()
    assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == ["000000", "000001", "of-the-user"]
    shutil.rmtree(tmp_path / "versions")
    shelf.sweep()


def test_a_shelf_does_not_grow_with_the_versions_it_has_seen(tmp_path: Path) -> None:
    shelf = VersionShelf(tmp_path, 3, "0")
    for version in range(1, 500):
        shelf.publish(version, str(version))
        shelf.retire(version - 1)
    assert shelf.digests == {version: str(version) for version in (0, 496, 497, 498, 499)}
