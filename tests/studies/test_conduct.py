"""A study from cells to page: in processes, kept cell by cell, gone on with, and refused where it does not fit."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from offbeat.commands.study import NAMES
from offbeat.errors import RunDirectoryError, RunFailed
from offbeat.locks import hold
from offbeat.studies import study as module
from offbeat.studies.cell import Cell, Result
from offbeat.studies.cell_process import main
from offbeat.studies.page import write_study
from offbeat.studies.registry import design
from offbeat.studies.store import Store
from offbeat.studies.study import Findings, Results, conduct
from tests.studies.conftest import TINY


class Pair:
    """A study of two cells."""

    name = "pair"
    kind = "train"

    def cells(self, seeds: int, smoke: bool) -> list[Cell]:
        return [Cell(self.name, self.kind, "plain", seed, 1, "fixed-lag", 1e-3, 3, TINY) for seed in range(seeds)]

    def findings(self, results: Results, smoke: bool) -> Findings:
        rewards = [values["reward"] for _, values in results]
        return Findings("A pair", "Two.", {"rewards": rewards}, ["Nothing."], [], [("T", "c", ["a"], [["<b>"]], 0)])


@contextmanager
def held(handle: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(handle)


class Log:
    """What an observer heard."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.taken: list[int] = []
        self.done: list[str] = []
        self.steps = 0

    def preparing(self, note: str, share: float) -> None: ...

    def took_over(self, directory: Path, cells: int) -> None:
        self.taken.append(cells)

    def begins(self, cells: int, kept: int, steps: int) -> None:
        self.kept.append(kept)

    def stepped(self, cell: Cell, done: int, total: int) -> None:
        self.steps += 1

    def finished(self, cell: Cell, seconds: float) -> None:
        self.done.append(cell.name)


@pytest.fixture(autouse=True)
def _prepared(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prepare_policy", lambda settings, progress: policy)


def test_a_worker_keeps_nothing_of_a_cell_it_has_done(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the collector does by itself, which is next to nothing where most objects are old."""
    ours, theirs = socket.socketpair()
    lines = [json.dumps(str(policy)).encode(), *map(msgspec.json.encode, Pair().cells(2, True))]
    ours.sendall(b"\n".join(lines) + b"\n")
    ours.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    gc.disable()
    try:
        main(theirs)
        theirs.close()
        told = [json.loads(line) for line in ours.makefile("rb")]
        assert sum("result" in each for each in told) == 2
        left = {type(each).__name__ for each in gc.get_objects()}
        assert left.isdisjoint({"Rollouts", "PolicyLearner", "Trainer"}), left
    finally:
        gc.enable()
        ours.close()


def test_a_study_keeps_its_cells_and_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    first, again = Log(), Log()
    one = conduct(Pair(), tmp_path / "s", 1, False, first)
    assert (first.kept, len(first.done), first.steps) == ([0], 1, 3)
    two = conduct(Pair(), tmp_path / "s", 2, False, again)
    assert (again.kept, len(again.done)) == ([1], 1)
    assert two.findings.values["rewards"][0] == one.findings.values["rewards"][0]
    whole = conduct(Pair(), tmp_path / "s", 2, False, Log())
    assert json.dumps(whole.to_json()) == json.dumps(two.to_json())
    assert two.to_json()["evidence"] is False
    page = write_study(two).read_text(encoding="utf-8")
    assert "Not evidence: 2 seeds" in page
    assert "&lt;b&gt;" in page


def test_cells_are_taken_over_from_another_study(tmp_path: Path) -> None:
    """Whatever a study calls a cell, its data are its key."""
    first = conduct(Pair(), tmp_path / "first", 1, False, Log())
    other, log = Pair(), Log()
    other.name = "other"
    second = conduct(other, tmp_path / "second", 2, False, log, [tmp_path / "first"], workers=1)
    assert (log.kept, log.taken, len(log.done)) == ([1], [1], 1)
    assert second.findings.values["rewards"][0] == first.findings.values["rewards"][0]
    alone = conduct(other, tmp_path / "second", 2, False, Log())
    assert alone.findings.values == second.findings.values, "what was taken over is its own from then on"
    with pytest.raises(RunDirectoryError, match=r"--reuse .*nowhere: no study there"):
        conduct(other, tmp_path / "third", 2, False, Log(), [tmp_path / "nowhere"])
    assert not (tmp_path / "third").exists(), "nothing was begun"


def test_what_is_taken_over_from_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "study.sqlite").touch()
    with pytest.raises(RunDirectoryError, match=r"--reuse .*empty"):
        conduct(Pair(), tmp_path / "s", 1, False, Log(), [tmp_path / "empty"])
    assert (tmp_path / "empty" / "study.sqlite").stat().st_size == 0
    unprepared = Store(tmp_path / "unprepared")
    unprepared.close()
    conduct(Pair(), tmp_path / "s", 1, False, Log(), [tmp_path / "unprepared"])
    Store(tmp_path / "unprepared").agree("policy", "its own", "it was stamped with another's policy")


@pytest.mark.parametrize("option", ["--out", "--reuse"])
def test_a_damaged_study_is_one_line(tmp_path: Path, option: str) -> None:
    conduct(Pair(), tmp_path / "s", 1, False, Log())
    file = tmp_path / "s" / "study.sqlite"
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + b"x" * (len(whole) - 4096))
    out, reuse = (tmp_path / "s", []) if option == "--out" else (tmp_path / "new", [tmp_path / "s"])
    with pytest.raises(RunDirectoryError, match=option):
        conduct(Pair(), out, 1, False, Log(), reuse)


def test_two_at_once_do_not_share_a_directory(tmp_path: Path) -> None:
    conduct(Pair(), tmp_path / "s", 1, False, Log())
    with held(hold(tmp_path / "s" / module.LOCK, "the test")), pytest.raises(RunDirectoryError, match="in use"):
        conduct(Pair(), tmp_path / "s", 1, False, Log())
    conduct(Pair(), tmp_path / "s", 1, False, Log())


def test_seeds_begin_where_they_are_told_to(tmp_path: Path) -> None:
    log = Log()
    outcome = conduct(Pair(), tmp_path / "s", 1, False, log, first_seed=3)
    assert log.done == ["plain S=1 lr=0.001 seed=3"]
    assert outcome.to_json()["first_seed"] == 3
    assert outcome.caution == "Not evidence: 1 seed, fewer than 5."


def test_a_failing_cell_is_named_and_finished_ones_are_kept(tmp_path: Path) -> None:
    conduct(Pair(), tmp_path / "s", 1, False, Log())
    broken = Pair()
    broken.kind = "nonsense"
    with pytest.raises(RunFailed, match="plain S=1"):
        conduct(broken, tmp_path / "s", 1, False, Log())
    store = Store(tmp_path / "s")
    assert len(store.results()) == 1
    store.close()


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match="no study"):
        conduct(Pair(), tmp_path, 1, False, Log())
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_another_study_or_start_policy_is_refused(tmp_path: Path) -> None:
    conduct(Pair(), tmp_path / "s", 1, False, Log())
    other = Pair()
    other.name = "other"
    with pytest.raises(RunDirectoryError, match="another study"):
        conduct(other, tmp_path / "s", 1, False, Log())
    store = Store(tmp_path / "s")
    with pytest.raises(RunDirectoryError, match="another start policy"):
        store.agree("policy", "0" * 64, "its cells began with another start policy")
    store.close()


def test_a_row_is_whole_and_the_key_is_the_cell(tmp_path: Path) -> None:
    (cell,) = Pair().cells(1, False)
    store = Store(tmp_path / "s")
    store.add(cell, Result(1.5, {"reward": [0.5]}))
    store.close()
    again = Store(tmp_path / "s")
    assert again.results() == {cell.key: Result(1.5, {"reward": [0.5]})}
    again.close()


def test_every_study_has_cells_that_differ_and_a_smoke_grid_that_is_smaller() -> None:
    for name in NAMES.split(", "):
        chosen = design(name)
        assert chosen is not None
        assert chosen.name == name
        whole, smoke = chosen.cells(2, smoke=False), chosen.cells(2, smoke=True)
        assert len({cell.key for cell in whole}) == len(whole) >= len(smoke) > 0
        assert sum(cell.steps for cell in whole) > sum(cell.steps for cell in smoke)
        assert {cell.seed for cell in whole} == {0, 1}
        assert [cell.seed for cell in whole] == sorted(cell.seed for cell in whole)
    assert design("nonsense") is None
