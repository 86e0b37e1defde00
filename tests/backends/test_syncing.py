"""One-behind invariant: a version is announced when the one before it is on the disk, and does not wait for its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from offbeat.backends import learner_process, weights
from offbeat.backends.messages import Exported, ExportTo, LearnerHello, StepDone, TrainOn
from offbeat.backends.weights import Canary, Manifest, Syncing, publish, version_directory
from offbeat.records import Batch, StepReport


def test_what_was_begun_is_on_the_disk_at_its_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(weights, "sync_tree", lambda path: synced.append(path.name))
    monkeypatch.setattr(weights, "sync", lambda path: synced.append(path.name))
    syncing = Syncing(tmp_path)
    syncing.finish()
    syncing.begin(3)
    syncing.finish()
    assert synced == ["000003", "versions"]


def test_a_disk_that_refuses_is_heard_of(tmp_path: Path) -> None:
    syncing = Syncing(tmp_path)
    syncing.begin(3)
    with pytest.raises(OSError, match="versions"):
        syncing.finish()


class Link:
    """Orders in, answers out; `at_send` is told of each."""

    def __init__(self, orders: list[Any], at_send: Any) -> None:
        self.orders, self.at_send = orders, at_send

    def next(self) -> Any:
        if not self.orders:
            raise EOFError
        return self.orders.pop(0)

    def send(self, message: Any) -> None:
        self.at_send(message)


def test_each_announcement_waits_for_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk: list[int] = []
    announced: list[tuple[int, list[int]]] = []
    announcement = threading.Event()

    def slow(directory: Path) -> None:
        version = int(directory.name)
        if version > 0:  # its own announcement comes first, or this would never end
            assert announcement.wait(30)
            announcement.clear()
        on_disk.append(version)

    def heard(message: Any) -> None:
        if isinstance(message, StepDone):
            announced.append((message.version, list(on_disk)))
            announcement.set()
        elif isinstance(message, Exported):
            announced.append((-1, list(on_disk)))

    def save(directory: Path) -> str:
        (directory / "model.safetensors").touch()
        return "digest"

    def step(order: TrainOn, after_pass: Callable[[], None]) -> StepReport:
        learner.version += 1
        return report

    report = msgspec.convert(
        {f.name: 0 for f in msgspec.structs.fields(StepReport) if f.required}, StepReport, strict=False
    )
    learner: Any = SimpleNamespace(version=0, step=step, publish=save, score=lambda *_: [0.0], export=lambda _: None)
    monkeypatch.setattr(weights, "sync_tree", slow)
    first = publish(tmp_path, 0, save, lambda: Canary((1,), (2,), (0.0,)))
    assert version_directory(tmp_path, 0).is_dir()
    link: Any = Link([*[TrainOn(Batch(v, ())) for v in range(3)], ExportTo(str(tmp_path / "model"))], heard)
    with pytest.raises(EOFError):
        learner_process._serve(link, LearnerHello(str(tmp_path), {}, 0, "digest", 0.0), first, learner)
    assert announced == [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (-1, [0, 1, 2, 3])]
    assert isinstance(first, Manifest)
