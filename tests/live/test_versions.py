"""What stays of the versions: version 0, live ones, the newest retired ones, optimizer state to go on from."""

from __future__ import annotations

import shutil
from pathlib import Path

from offbeat.backends.weights import version_directory
from offbeat.live.versions import VersionShelf

FILES = ("model.safetensors", "optimizer.safetensors")


def written(run: Path, *versions: int) -> dict[int, str]:
    for version in versions:
        version_directory(run, version).mkdir(parents=True)
        for name in FILES:
            (version_directory(run, version) / name).touch()
    return {version: str(version) for version in versions}


def shown(run: Path) -> dict[int, int]:
    """Versions on disk and how many files each has."""
    return {int(path.name): len(list(path.iterdir())) for path in sorted((run / "versions").iterdir())}


def test_the_newest_retired_ones_stay_without_their_optimizer(tmp_path: Path) -> None:
    shelf = VersionShelf(tmp_path, 2, written(tmp_path, 0, 1, 2, 3, 4), [])
    for version in (0, 1, 2):
        shelf.retire(version)
    assert shown(tmp_path) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2}
    shelf.retire(3)
    assert shown(tmp_path) == {0: 1, 2: 1, 3: 2, 4: 2}, "the one before the newest keeps its optimizer"


def test_the_same_stays_when_a_run_is_taken_up(tmp_path: Path) -> None:
    VersionShelf(tmp_path, 2, written(tmp_path, 0, 1, 2, 3, 4), [0, 1, 2])
    assert shown(tmp_path) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2}


def test_what_was_written_but_never_logged_goes(tmp_path: Path) -> None:
    digests = written(tmp_path, 0, 1, 2)
    del digests[2]
    (tmp_path / "versions" / ".000003.writing").mkdir()
    (tmp_path / "versions" / "of-the-user").mkdir()
    VersionShelf(tmp_path, 2, digests, []).discard_unlogged()
    assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == ["000000", "000001", "of-the-user"]
    shutil.rmtree(tmp_path / "versions")
    VersionShelf(tmp_path, 2, digests, []).discard_unlogged()
