"""`offbeat simulate`: one JSON object, a page, a sweep with its best point; bad input is one line."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.sim.kept import Kept
from offbeat.sim.simulate import simulate
from offbeat.sim.sweep import Point, axes, best, sweep, variants
from tests.sim.clusters import cluster

SMALL = ["--set", "schedule.train_batch_size=64", "--set", "run.iterations=8", "--set", "run.warmup=2"]
SWEEP = ["--sweep", "schedule.max_staleness=1,3", "--sweep", "learner_share=0.25,0.5"]
KEYS = {
    "step_minutes", "rollout_only_minutes", "trajectories_per_second", "tokens_per_second", "slots_busy", "bubble",
    "staleness_mean", "staleness_max", "staleness_histogram", "learner_idle", "moved_bytes",
}  # fmt: skip


def test_json_page_and_sweep(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        app,
        ["simulate", "dora-64", *SMALL, "--schedules", "multi-version,sync", "--json", "--out", str(page), *SWEEP],
    )
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert set(result["schedules"]) == {"multi-version", "sync"}
    assert all(set(found) >= KEYS for found in result["schedules"].values())
    assert result["accelerators"] == 64
    assert result["events"] > 1000
    assert result["wall_seconds"] > 0
    assert len(result["sweep"]["points"]) == 4
    assert result["sweep"]["best"] in [point["values"] for point in result["sweep"]["points"]]
    text = page.read_text()
    for words in (
        "multi-version: lanes",
        "sync: slots and learner",
        "Best:",
        "Staleness of what was trained on",
        "1 version old",
    ):
        assert words in text
    assert "http" not in text.split("<script>")[0].replace("http://www.w3.org", "")


def test_best_is_the_fastest_and_of_equals_the_freshest() -> None:
    def point(k: int, rate: float, stale: float) -> Point:
        result = {"trajectories_per_second": rate, "staleness_mean": stale, "learner_idle": 0.0, "slots_busy": 0.5}
        return Point({"schedule.max_staleness": k}, result)

    chosen, why = best([point(1, 5.0, 1.0), point(2, 9.95, 1.5), point(4, 10.0, 3.0)])
    assert chosen.values == {"schedule.max_staleness": 2}
    assert "learner never waits" in why


def test_sweeps_that_cannot_be() -> None:
    for text in ("nonsense", "=1", "a="):
        with pytest.raises(SettingsError):
            axes([text])
    with pytest.raises(SettingsError, match="no section"):
        variants(cluster(), axes(["nowhere.key=1"]))
    with pytest.raises(SettingsError):
        variants(cluster(), axes(["learner_share=2"]))
    assert len(variants(cluster(), axes(["all"]))) == 36
    assert len(variants(cluster(), axes(["learner_share=0.5", "all"]))) == 12
    with pytest.raises(SettingsError, match="twice"):
        axes(["learner_share=0.5", "learner_share=0.25"])


@pytest.mark.parametrize("place", ["no/page.html", "", "file/page.html"])
def test_a_page_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with patch("offbeat.sim.simulate.simulate", side_effect=AssertionError("it ran")):
        done = CliRunner().invoke(app, ["simulate", "dora-64", *SMALL, "--out", str(tmp_path / place)])
    assert isinstance(done.exception, RunDirectoryError)
    assert "\n" not in str(done.exception)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def points(keep: Path) -> tuple[list[Point], int]:
    """A sweep of four small points with a file to keep them in, and how many of them were simulated."""
    about = cluster(run={"iterations": 5, "warmup": 1})
    with patch("offbeat.sim.sweep.simulate", side_effect=simulate) as ran:
        found = sweep(about, "multi-version", axes(["schedule.max_staleness=1,2", "slots=8,16"]), told, Kept(keep))
    return found, ran.call_count


def told(done: float, total: int) -> None:
    assert 0 <= done <= total == 4


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    """Cut off at any byte, the file gives the whole lines it has, and the rest is simulated again."""
    keep = tmp_path / "points.jsonl"
    found, ran = points(keep)
    assert ran == 4
    assert points(keep) == (found, 0)
    whole = keep.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut, missing in ((ends[1], 2), (ends[1] + 9, 2), (ends[2] - 1, 1), (3, 4)):
        keep.write_bytes(whole[:cut])
        assert points(keep) == (found, missing)
        assert points(keep) == (found, 0)


def test_what_is_kept_is_kept_for_its_cluster_and_schedule_only(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "points.jsonl")
    for name, about in (("a", cluster()), ("b", cluster(slots=9))):
        for schedule in ("sync", "repack"):
            assert kept.result(about, schedule, lambda: {"of": name + schedule}) == {"of": name + schedule}  # noqa: B023
    assert kept.result(cluster(), "repack", dict) == {"of": "arepack"}


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("dear diary\n")
    with pytest.raises(SettingsError, match="line 1"):
        Kept(other)
    assert other.read_text() == "dear diary\n"
    with pytest.raises(SettingsError, match="cannot be written"):
        Kept(tmp_path)
    done = CliRunner().invoke(app, ["simulate", "dora-64", "--keep", str(tmp_path / "x")])
    assert isinstance(done.exception, SettingsError)
