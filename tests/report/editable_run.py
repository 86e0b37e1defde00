"""A run as lists that a test may change, and how it is written to a run directory."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from offbeat import events as e
from offbeat.records import Instruments, StepReport, Trajectory
from offbeat.settings import Settings, settings_from

TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE events(seq INTEGER PRIMARY KEY, now REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    commands TEXT NOT NULL);
CREATE TABLE prompts(group_id INTEGER PRIMARY KEY, prompt_id INTEGER, dataset TEXT, text TEXT, answer TEXT,
    token_ids BLOB);
CREATE TABLE trajectories(trajectory_id INTEGER, attempt INTEGER, record BLOB, reward REAL,
    PRIMARY KEY(trajectory_id, attempt));
"""


@dataclass
class Row:
    now: float
    event: e.Event
    commands: list[e.Command]


@dataclass
class EditableRun:
    """A run as lists that a test may change before `write`. Row i gets seq i + 1."""

    settings: Settings
    rows: list[Row] = field(default_factory=list)
    payloads: dict[tuple[int, int], Trajectory] = field(default_factory=dict)
    rewards: dict[tuple[int, int], float] = field(default_factory=dict)
    prompt_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> Path:
        """A database in WAL mode with everything still in the log, as a killed process leaves it."""
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("run.sqlite*"):
            old.unlink()
        db = sqlite3.connect(directory / "run.sqlite")
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(TABLES)
        meta = {"schema": "1", "offbeat_version": "0.1.0", "settings": self.settings.model_dump_json()}
        meta |= {"created": "2030-01-02T03:04:05+00:00", "policy": "policy", "digest_0": "0" * 64} | self.meta
        db.executemany("INSERT INTO meta VALUES(?, ?)", meta.items())
        for row in self.rows:
            body, commands = msgspec.json.encode(row.event).decode(), msgspec.json.encode(row.commands).decode()
            record = (row.now, type(row.event).__name__, body, commands)
            db.execute("INSERT INTO events(now, kind, body, commands) VALUES(?, ?, ?, ?)", record)
        for group_id, ids in self.prompt_ids.items():
            record = (group_id, group_id, "running-sum", f"{group_id}+1=", str(group_id + 1))
            db.execute("INSERT INTO prompts VALUES(?, ?, ?, ?, ?, ?)", (*record, msgspec.msgpack.encode(ids)))
        for key, payload in self.payloads.items():
            blob = msgspec.msgpack.encode(payload)
            db.execute("INSERT INTO trajectories VALUES(?, ?, ?, ?)", (*key, blob, self.rewards.get(key)))
        db.commit()
        db.close()
        return directory

    # -- finding ---------------------------------------------------------------------------------------------

    def where(self, kind: type, nth: int = 0, also: Callable[[e.Event], bool] = lambda event: True) -> int:
        """Index of the nth row with an event of this kind."""
        return [i for i, row in enumerate(self.rows) if isinstance(row.event, kind) and also(row.event)][nth]

    def command(self, kind: type, nth: int = 0, also: Callable[[e.Command], bool] = lambda c: True) -> tuple[int, int]:
        """(row, position) of the nth command of this kind."""
        places = [
            (i, j)
            for i, row in enumerate(self.rows)
            for j, command in enumerate(row.commands)
            if isinstance(command, kind) and also(command)
        ]
        return places[nth]

    def replace_command(self, place: tuple[int, int], **changes: object) -> e.Command:
        row, position = place
        old = self.rows[row].commands[position]
        self.rows[row].commands[position] = msgspec.structs.replace(old, **changes)
        return old

    def replace_event(self, row: int, **changes: object) -> None:
        self.rows[row].event = msgspec.structs.replace(self.rows[row].event, **changes)


def small_settings(**changes: object) -> Settings:
    data: dict[str, dict[str, object]] = {
        "schedule": {"group_size": 4, "train_batch_size": 16, "max_staleness": 2},
        "rollout": {"lanes": 2, "slots": 10},
        "learner": {"iterations": 12},
        "run": {"evaluate_every": 4},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        data.setdefault(section, {})[name] = value
    return settings_from(data)


def step_report(
    iteration: int, tokens: int, rewards: list[float], settings: Settings, rng: random.Random
) -> StepReport:
    skipped = int(iteration % 17 == 3)
    return StepReport(
        iteration=iteration,
        trajectories=len(rewards),
        tokens=tokens,
        prompt_tokens=6 * len(rewards),
        reward_mean=sum(rewards) / len(rewards),
        reward_std=0.4,
        zero_advantage_groups=rng.randrange(3),
        loss=rng.gauss(0, 0.02),
        gradient_norm=rng.lognormvariate(-0.7, 0.3),
        ratio_mean=rng.gauss(1.0, 0.004),
        ratio_max=1.0 + rng.lognormvariate(0.3, 0.4),
        clip_share=rng.uniform(0.0, 0.05),
        policy_lag_kl=rng.lognormvariate(-6, 0.5),
        entropy=0.7 * 0.995**iteration + rng.gauss(0, 0.01),
        learning_rate=settings.learner.learning_rate,
        skipped_updates=skipped,
        consecutive_skips=skipped,
        train_seconds=0.4,
        publish_seconds=0.05,
        instruments=instruments(iteration, rng),
    )


def instruments(iteration: int, rng: random.Random) -> Instruments:
    """A policy that drifts ballistically; nothing was of staleness 1, and the first iteration had nothing stale."""
    stale = iteration > 2
    return Instruments(
        staleness_mean=2.0 * stale,
        effective_sample_size=rng.uniform(0.6, 1.0),
        clip_share_by_staleness=(rng.uniform(0, 0.01), None, rng.uniform(0, 0.05)) if stale else (0.0,),
        lag_kl_by_staleness=(rng.uniform(0, 1e-3), None, rng.uniform(0, 5e-3)) if stale else (0.0,),
        rate_scale=1.0,
        g_upd=rng.uniform(200, 300),
        iteration_drift=0.1,
        drift_from_start=0.1 * (iteration + 1),
        drift_by_staleness=(0.0, 0.1, 0.2) if stale else (0.0,),
        drift_exponent=1.0,
    )
