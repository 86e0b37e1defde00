"""What is written is what TensorBoard itself reads: every step once, also after a crash and a resume."""

from __future__ import annotations

import zlib
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from offbeat import events as e
from offbeat.records import StepAlignment, StepReport
from offbeat.report import tensorboard
from offbeat.report.eventfile import masked_crc32c
from offbeat.report.page import write_report
from offbeat.report.read import read_run
from offbeat.report.summary import summary
from offbeat.report.tensorboard import TensorBoard, step_scalars
from offbeat.testing.empty_report import EMPTY_REPORT
from tests.report.simulated_run import EditableRun, Row, simulated_run

CREATED = "2026-11-30T00:00:00+00:00"
ORIGIN = datetime.fromisoformat(CREATED).timestamp()


@pytest.fixture(scope="module")
def made() -> EditableRun:
    return simulated_run()


def board(directory: Path, made: EditableRun, until: int) -> TensorBoard:
    recorded = [(row.event, row.now) for row in made.rows[:until]]
    return TensorBoard(directory, CREATED, recorded, pytest.fail)


def read(directory: Path) -> dict[str, list[tuple[int, float, float]]]:
    accumulator = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(point.step, point.value, point.wall_time) for point in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def expected(made: EditableRun) -> dict[str, list[tuple[int, float, float]]]:
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in made.rows:
        if isinstance(row.event, e.Trained):
            values, step = step_scalars(row.event.report), row.event.version
        elif isinstance(row.event, e.Evaluated):
            values, step = {"held_out/greedy": row.event.exact_match_greedy}, row.event.version
            values["held_out/sampled"] = row.event.exact_match_sampled
        else:
            continue
        for tag, value in values.items():
            found.setdefault(tag, []).append((step, pytest.approx(value, rel=1e-6), pytest.approx(ORIGIN + row.now)))
    return found


def test_tensorboard_reads_every_number_of_every_step(made: EditableRun, tmp_path: Path) -> None:
    written = board(tmp_path, made, 0)
    for row in made.rows:
        written.saw(row.event, row.now, row.commands)
    written.close()
    found = read(tmp_path)
    assert found == expected(made)
    tags = {"reward/mean", "policy/lag_kl", "stability/g_upd", "stability/drift_exponent", "held_out/greedy"}
    assert tags | {"stability/clip_share_at_staleness/2"} <= found.keys()


def test_a_resume_doubles_no_step_and_loses_none(made: EditableRun, tmp_path: Path) -> None:
    killed = len(made.rows) // 2
    first = board(tmp_path, made, 0)
    for row in made.rows[:killed]:
        first.saw(row.event, row.now, row.commands)
    file = next((tmp_path / "tensorboard").iterdir())
    file.write_bytes(file.read_bytes()[:-7])  # the last record is torn; the log has its event all the same
    second = board(tmp_path, made, killed)
    for row in made.rows[killed:]:
        second.saw(row.event, row.now, row.commands)
    second.close()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert read(tmp_path) == expected(made)


def test_a_running_tensorboard_forgets_the_file_of_the_session_before(made: EditableRun, tmp_path: Path) -> None:
    first = board(tmp_path, made, len(made.rows))
    watching = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    watching.Reload()
    first.close()
    board(tmp_path, made, len(made.rows)).close()
    watching.Reload()
    steps = [point.step for point in watching.Scalars("reward/mean")]
    assert steps == sorted(set(steps))


def test_a_disk_that_refuses_ends_the_writing_not_the_run(made: EditableRun, tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    said: list[str] = []
    written = TensorBoard(tmp_path, CREATED, [(row.event, row.now) for row in made.rows], said.append)
    written.saw(made.rows[0].event, 0.0, ())
    written.close()
    assert len(said) == 1
    assert "the run goes on without" in said[0]
    assert tensorboard.DIRECTORY in said[0]


def without_instruments(made: EditableRun) -> EditableRun:
    """The log as it was before there were instruments."""
    rows = [
        Row(
            row.now,
            msgspec.structs.replace(row.event, report=msgspec.structs.replace(row.event.report, instruments=None)),
            row.commands,
        )
        if isinstance(row.event, e.Trained)
        else row
        for row in made.rows
    ]
    return EditableRun(made.settings, rows, made.payloads, made.rewards, made.prompt_ids)


def test_logs_without_instruments_still_read(made: EditableRun, tmp_path: Path) -> None:
    old = without_instruments(made)
    written = board(tmp_path, old, len(old.rows))
    written.close()
    assert not [tag for tag in read(tmp_path) if tag.startswith("stability/")]
    directory = old.write(tmp_path / "run")
    assert summary(read_run(directory))["stability"] is None
    assert "<h2>Stability</h2>" not in write_report(directory).read_text()
    assert "<h2>Stability</h2>" in write_report(made.write(tmp_path / "new")).read_text()


def test_cosines_are_there_where_alignment_is_watched() -> None:
    alignment = StepAlignment(cosine=0.3, update=0.9, kept=0.8, projected=1, lags={1: 0.3, 4: 0.1})
    found = step_scalars(msgspec.structs.replace(EMPTY_REPORT, alignment=alignment))
    assert (found["alignment/cosine"], found["alignment/cosine_at_lag/4"], found["alignment/projected"]) == (
        0.3,
        0.1,
        1,
    )
    assert "alignment/controlled" not in found
    assert not [tag for tag in step_scalars(EMPTY_REPORT) if tag.startswith("alignment/")]


def test_a_report_of_an_earlier_version_decodes() -> None:
    keys = msgspec.to_builtins(EMPTY_REPORT)
    del keys["instruments"]
    assert msgspec.json.decode(msgspec.json.encode(keys), type=StepReport) == EMPTY_REPORT


def test_checksum_is_castagnolis() -> None:
    crc = masked_crc32c(b"123456789") - 0xA282EAD8 & 0xFFFFFFFF
    assert (crc << 15 | crc >> 17) & 0xFFFFFFFF == 0xE3069283 != zlib.crc32(b"123456789")
