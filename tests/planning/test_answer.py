"""A run whose weights and mismatches are made by a formula: the plan must recover it, from files alone."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sqlite3
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from offbeat import events as e
from offbeat.errors import RunDirectoryError, WeightsError
from offbeat.planning.answer import answer
from offbeat.planning.pilot import pilot_steps
from offbeat.records import Instruments
from offbeat.report.read import read_run
from offbeat.report.story import tell
from tests.report.simulated_run import simulated_run, small_settings

ETA, G_UPD, SLOPE = 1e-3, 2.0, 5.0
"""Each publish moves the weights by ETA G_UPD along one line; the mismatch is SLOPE times the distance."""


def nothing(done: int, total: int) -> None:
    pass


@pytest.fixture
def pilot(tmp_path: Path) -> Path:
    made = simulated_run(settings=small_settings(learner__iterations=40, run__keep_versions=64), payloads=False)
    directory = tmp_path / "pilot"
    direction = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    direction *= ETA * G_UPD / np.linalg.norm(direction)
    digests = {}
    for version in range(41):
        place = directory / "versions" / f"{version:06d}"
        place.mkdir(parents=True)
        weights = 3.0 + version * direction
        save_file({"b": weights[:40], "a": weights[40:].reshape(6, 10)}, place / "model.safetensors")
        digests[version] = hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest()
    made.meta["digest_0"] = digests[0]
    versions: dict[int, int] = {}
    for row in made.rows:
        for command in row.commands:
            if isinstance(command, e.Generate):
                versions.setdefault(command.group_id, command.version)
    train: e.Train | None = None
    for row in made.rows:
        if isinstance(row.event, e.Trained):
            assert train is not None
            lags = [train.iteration - versions[group] for group in train.group_ids]
            distance = ETA * G_UPD * math.sqrt(sum(lag * lag for lag in lags) / len(lags))
            report = msgspec.structs.replace(
                row.event.report,
                learning_rate=ETA,
                policy_lag_kl=(SLOPE * distance) ** 2 / 2,
                reward_mean=0.5,
                instruments=None,
            )
            row.event = msgspec.structs.replace(row.event, digest=digests[row.event.version], report=report)
        train = next((c for c in row.commands if isinstance(c, e.Train)), train)
    return made.write(directory)


def test_plan_recovers_what_made_the_run(pilot: Path) -> None:
    made, page = answer(pilot, staleness=8, steps=40, out=None, said=nothing)
    level = 2.8 * math.log(1.2)
    assert made.estimates.g_upd == pytest.approx(G_UPD, rel=1e-3)
    assert made.estimates.r_batch == pytest.approx(level / SLOPE, rel=0.02)
    assert made.eta_max == pytest.approx(level / SLOPE / (8 * G_UPD), rel=0.02)
    assert made.binding == "staleness"
    assert made.margin == pytest.approx(made.eta_max / ETA)
    assert made.estimates.reach.exponent == pytest.approx(1.0, abs=0.01)
    assert made.estimates.r_crit == pytest.approx(40 * ETA * G_UPD, rel=1e-3)
    assert not made.estimates.r_crit_seen
    json.dumps(made.to_json(), allow_nan=False)
    assert page == pilot / "plan.html"
    assert "What a run would survive" in page.read_text(encoding="utf-8")


def test_by_default_it_plans_for_the_run_itself(pilot: Path) -> None:
    made, _ = answer(pilot, staleness=None, steps=None, out=None, said=nothing)
    assert (made.staleness, made.steps) == (2, 40)


def test_steps_are_the_iterations_in_order_and_the_log_says_how_stale_they_were(pilot: Path) -> None:
    run = read_run(pilot)
    steps = pilot_steps(run)
    assert len(steps) == len(tell(run).consumptions) == 40
    assert [step.drift for step in steps] == pytest.approx([(t + 1) * ETA * G_UPD for t in range(40)], rel=1e-3)
    assert all(step.mismatch == pytest.approx(SLOPE * (step.lag_distance or 0.0), rel=1e-2, abs=1e-5) for step in steps)
    assert max(step.lag_distance or 0.0 for step in steps) > ETA * G_UPD


def test_a_run_that_kept_too_few_versions_is_refused_with_the_remedy(pilot: Path) -> None:
    for version in range(30):
        (pilot / "versions" / f"{version:06d}" / "model.safetensors").unlink()
    with pytest.raises(RunDirectoryError, match="16 are needed"):
        answer(pilot, 4, 100, None, nothing)
    assert not (pilot / "plan.html").exists()


def test_weights_that_are_not_the_announced_ones_are_refused(pilot: Path) -> None:
    file = pilot / "versions" / "000020" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(WeightsError, match="SHA-256"):
        answer(pilot, 4, 100, None, nothing)


def test_the_log_alone_is_enough_where_the_learner_measured(pilot: Path) -> None:
    from_weights, _ = answer(pilot, 8, 40, None, nothing)
    database = sqlite3.connect(pilot / "run.sqlite")
    for seq, body in database.execute("SELECT seq, body FROM events WHERE kind = 'Trained'").fetchall():
        event = msgspec.json.decode(body, type=e.Event)
        unit = ETA * G_UPD
        measured = Instruments(
            1.0, 1.0, (), (), 1.0, G_UPD, unit, event.version * unit, tuple(s * unit for s in range(3)), 1.0
        )
        report = msgspec.structs.replace(event.report, instruments=measured)
        event = msgspec.structs.replace(event, report=report)
        database.execute("UPDATE events SET body = ? WHERE seq = ?", (msgspec.json.encode(event).decode(), seq))
    database.commit()
    database.close()
    shutil.rmtree(pilot / "versions")
    from_log, _ = answer(pilot, 8, 40, None, nothing)
    assert from_log.eta_max == pytest.approx(from_weights.eta_max, rel=1e-3)
    assert from_log.estimates.reach.exponent == pytest.approx(1.0, abs=1e-3)


def test_without_version_0_the_drift_is_unknown_and_the_worst_is_assumed(pilot: Path) -> None:
    (pilot / "versions" / "000000" / "model.safetensors").unlink()
    made, _ = answer(pilot, 4, 1000, None, nothing)
    assert made.estimates.reach(1000) == 1000
