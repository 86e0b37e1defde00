"""W&B and trackio get what TensorBoard gets, also after a resume; a library that fails does not end a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offbeat import events as e
from offbeat.errors import SettingsError
from offbeat.report import trackers
from offbeat.report.tensorboard import event_scalars
from offbeat.report.trackers import Tracker, wanted
from offbeat.settings import Settings, settings_from
from offbeat.testing.empty_report import EMPTY_REPORT

RECORDED: list[tuple[e.Event, float]] = [
    (e.Evaluated(0, 8, 0.25, 0.5), 1.0),
    (e.Trained(1, "", EMPTY_REPORT, 0.0, 2.0), 2.0),
    (e.Tick(), 2.5),
    (e.Trained(2, "", EMPTY_REPORT, 2.0, 3.0), 3.0),
]


def chosen(*libraries: str) -> Settings:
    return settings_from({"run": dict.fromkeys(libraries, True) | {"project": "tests"}})


def complain(words: str) -> None:
    raise AssertionError(words)


def expected() -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for event, _ in RECORDED:
        step, scalars = event_scalars(event)
        if scalars:
            found.setdefault(step, {}).update(scalars)
    return found


def records_of(data: bytes) -> Iterator[bytes]:
    """LevelDB's log format: blocks of 32 KiB of records (checksum 4, length 2, type 1, contents), long ones in parts.
    The first 7 bytes are W&B's own."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def history(directory: Path) -> dict[int, dict[str, float]]:
    """What an offline run of W&B has written, by step, read from its own file."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows: dict[int, dict[str, float]] = {}
    for file in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        for data in records_of(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                row = {"".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                rows.setdefault(int(row["_step"]), {}).update(row)
    return rows


def test_wandb_offline_has_every_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = Tracker("wandb", tmp_path, chosen("wandb"), ("2026-01-01T00:00:00+00:00", 0), RECORDED[:2], complain)
    for event, now in RECORDED[2:]:
        tracker.saw(event, now, [])
    tracker.close()
    deadline = time.monotonic() + 30  # a process of W&B's own writes, and may be behind
    while (found := history(tmp_path)).keys() != expected().keys() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found.keys() == expected().keys()
    for step, scalars in expected().items():
        assert {tag: found[step][tag] for tag in scalars} == pytest.approx(scalars)


class Recorder:
    """A library that keeps what it is told; `fails` is the call that raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.begun: dict[str, Any] = {}
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def _called(self, name: str) -> None:
        print(f"{name} was called")
        if self.fails == name:
            raise RuntimeError("no network\nat all")

    def init(self, **given: Any) -> None:
        self._called("init")
        self.begun = given

    def log(self, row: dict[str, float], step: int) -> None:
        self._called("log")
        self.rows.append((step, row))

    def finish(self) -> None:
        self._called("finish")
        self.finished += 1


def told(monkeypatch: pytest.MonkeyPatch, recorder: Recorder, directory: Path, session: int = 0) -> list[str]:
    monkeypatch.setattr(trackers.importlib, "import_module", lambda name: recorder)
    complaints: list[str] = []
    tracker = Tracker("trackio", directory, chosen("trackio"), ("now", session), RECORDED, complaints.append)
    tracker.saw(RECORDED[-1][0], 4.0, [])
    tracker.close()
    tracker.close()
    return complaints


def test_trackio_gets_a_run_for_each_session_with_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Recorder(), Recorder()
    assert told(monkeypatch, first, tmp_path / "run") == told(monkeypatch, second, tmp_path / "run", 1) == []
    assert (first.begun["name"], second.begun["name"]) == ("run", "run-session-1")
    assert first.begun["project"] == "tests"
    assert [step for step, _ in first.rows] == [0, 1, 2, 2]
    assert first.rows == second.rows
    assert first.finished == 1
    assert capsys.readouterr().out == "", "standard output belongs to --json"


@pytest.mark.parametrize("call", ["init", "log", "finish"])
def test_a_library_that_fails_ends_its_telling_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str) -> None:
    recorder = Recorder(fails=call)
    assert told(monkeypatch, recorder, tmp_path) == ["trackio: no network; the run goes on without it"]


def test_a_library_that_is_absent_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"run.wandb = true: wandb is not installed"):
        wanted(chosen("wandb"))
    assert wanted(settings_from({})) == []
