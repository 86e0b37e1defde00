"""Reads a run directory: settings, every event with its commands, facts about prompts and payloads.

*Snapshot*: all of it comes from one SQLite read transaction, so a run may go on writing meanwhile, and what a
killed run left in its write-ahead log is seen. Nothing is ever written to the run's tables.
This file does not know what the events mean.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.events import Command, Event, Generate, Trained
from offbeat.records import FinishReason, Trajectory
from offbeat.settings import Settings, settings_from

SCHEMA = "1"
DATABASE = "run.sqlite"
_T = TypeVar("_T")
_TRAINED = msgspec.json.Decoder(Trained).decode


class Record(msgspec.Struct, frozen=True):
    """One row of the log: the event, when it was handled (seconds of run time), the commands it caused in order.

    A Generate has an attempt for each of its trajectories: `read_run` refuses any other.
    """

    seq: int
    now: float
    event: Event
    commands: tuple[Command, ...]


class PromptFacts(msgspec.Struct, frozen=True):
    """A drawn prompt without its token ids; `tokens` is their number."""

    prompt_id: int
    dataset: str
    text: str
    answer: str
    tokens: int


class PayloadFacts(msgspec.Struct, frozen=True):
    """What the audit needs of a stored trajectory: the versions of its spans in order, and its sizes.

    `logprobs_sound` is true when every behaviour log-prob is a finite number <= 0 (up to rounding). `named` is the
    (trajectory_id, attempt) that the payload itself states; `reward` is what the learner was given, if stored.
    """

    span_versions: tuple[int, ...]
    tokens: int
    logprobs: int
    logprobs_sound: bool
    finish_reason: FinishReason
    named: tuple[int, int]
    reward: float | None = None


@dataclass(frozen=True)
class Run:
    """A run as it was at one moment. `payloads` is keyed by (trajectory_id, attempt), `prompts` by group_id."""

    directory: Path
    meta: Mapping[str, str]
    settings: Settings
    records: tuple[Record, ...]
    prompts: Mapping[int, PromptFacts]
    payloads: Mapping[tuple[int, int], PayloadFacts]

    @property
    def group_size(self) -> int:
        return self.settings.schedule.group_size

    @property
    def wall_seconds(self) -> float:
        """Run time of the last event: the sum over sessions, without the time between them."""
        return self.records[-1].now if self.records else 0.0

    @property
    def policy_directory(self) -> Path:
        """Where the Hugging Face config and tokenizer of the policy lie."""
        return self.directory / self.meta.get("policy", "policy")


def read_run(directory: Path) -> Run:
    """Read a run directory. Raises RunDirectoryError, in one line, if it is not one that can be read."""
    with _snapshot(directory) as connection:
        meta = _meta(directory, connection)
        return Run(
            directory=directory,
            meta=MappingProxyType(meta),
            settings=_settings(directory, meta),
            records=tuple(_records(directory, connection)),
            prompts=MappingProxyType(dict(_prompts(directory, connection))),
            payloads=MappingProxyType(dict(_payloads(directory, connection))),
        )


def read_log(directory: Path) -> tuple[Run, str]:
    """Settings and events, without prompts and payloads, as far as they can be read, and why no further.

    The reason is empty where the whole file is sound. Raises RunDirectoryError where not even settings can be read.
    """
    records: list[Record] = []
    damage = ""
    with _snapshot(directory) as connection:
        meta = _meta(directory, connection)
        settings = _settings(directory, meta)
        try:
            for record in _records(directory, connection):
                records.append(record)
            [(found,)] = connection.execute("PRAGMA quick_check(1)")
            damage = "" if found == "ok" else found.splitlines()[-1]
        except (RunDirectoryError, sqlite3.DatabaseError) as error:
            damage = str(error)
    return Run(directory, MappingProxyType(meta), settings, tuple(records), {}, {}), damage


def read_trajectories(run: Run, keys: Iterable[tuple[int, int]]) -> Iterator[Trajectory]:
    """The full payloads of these (trajectory_id, attempt). Raises RunDirectoryError for one that is not there."""
    decode = msgspec.msgpack.Decoder(Trajectory).decode
    with _snapshot(run.directory) as connection:
        for key in keys:
            query = "SELECT record FROM trajectories WHERE trajectory_id = ? AND attempt = ?"
            row = connection.execute(query, key).fetchone()
            if row is None:
                raise RunDirectoryError(f"{run.directory}: trajectory {key[0]}, attempt {key[1]} is not stored")
            yield _decoded(run.directory, f"trajectory {key[0]}", decode, row[0])


def read_prompt_ids(run: Run, group_ids: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Token ids [P] of these groups' prompts. Raises RunDirectoryError for one that is not there."""
    decode = msgspec.msgpack.Decoder(tuple[int, ...]).decode
    with _snapshot(run.directory) as connection:
        for group_id in group_ids:
            row = connection.execute("SELECT token_ids FROM prompts WHERE group_id = ?", (group_id,)).fetchone()
            if row is None:
                raise RunDirectoryError(f"{run.directory}: the prompt of group {group_id} is not stored")
            yield _decoded(run.directory, f"prompt {group_id}", decode, row[0])


def read_published(directory: Path, after: int = 0) -> tuple[dict[int, str], int]:
    """The SHA-256 of every version that was published after event `after` (0: also of version 0), and the number of the
    last event there is. A run may be going on. Raises RunDirectoryError."""
    with _snapshot(directory) as connection:
        found = {} if after else {0: _meta(directory, connection).get("digest_0", "")}
        last = after
        for seq, kind, body in connection.execute("SELECT seq, kind, body FROM events WHERE seq > ?", (after,)):
            last = max(last, seq)
            if kind == "Trained":
                event = _decoded(directory, f"event {seq}", _TRAINED, body)
                found[event.version] = event.digest
        return found, last


# -- opening ---------------------------------------------------------------------------------------------------


@contextmanager
def _snapshot(directory: Path) -> Iterator[sqlite3.Connection]:
    """A read transaction on the run's database; damage that SQLite reports becomes a RunDirectoryError."""
    database = directory / DATABASE
    if not directory.is_dir():
        raise RunDirectoryError(f"{directory}: no such directory; give one made by `offbeat train`")
    if not database.is_file():
        raise RunDirectoryError(f"{directory}: holds no {DATABASE}; give a directory made by `offbeat train`")
    with tempfile.TemporaryDirectory(prefix="offbeat-read-") as scratch:
        try:
            with closing(_connect(database, Path(scratch))) as connection:
                connection.execute("BEGIN")
                yield connection
        except sqlite3.DatabaseError as error:
            raise RunDirectoryError(
                f"{directory}: {DATABASE} cannot be read ({error}); it is damaged or not a run of offbeat"
            ) from None


def _connect(database: Path, scratch: Path) -> sqlite3.Connection:
    """Open read-only. On a read-only disk SQLite cannot make the index of a write-ahead log: open a copy then."""
    try:
        return _read_only(database)
    except sqlite3.OperationalError:
        for suffix in ("", "-wal"):
            source = database.with_name(database.name + suffix)
            if source.exists():
                shutil.copyfile(source, scratch / source.name)
        return _read_only(scratch / database.name)


def _read_only(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=10)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _meta(directory: Path, connection: sqlite3.Connection) -> dict[str, str]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    missing = {"meta", "events", "prompts", "trajectories"} - tables
    if missing:
        raise RunDirectoryError(
            f"{directory}: {DATABASE} has no table {', '.join(sorted(missing))}; it is not a run of offbeat"
        )
    meta = {str(key): str(value) for key, value in connection.execute("SELECT key, value FROM meta")}
    if meta.get("schema") != SCHEMA:
        raise RunDirectoryError(
            f"{directory}: has schema {meta.get('schema', 'none')}, this offbeat reads schema {SCHEMA}; {_advice(meta)}"
        )
    return meta


def _settings(directory: Path, meta: Mapping[str, str]) -> Settings:
    try:
        return settings_from(json.loads(meta["settings"]))
    except (KeyError, ValueError, SettingsError) as error:
        raise RunDirectoryError(f"{directory}: its settings cannot be read ({error}); {_advice(meta)}") from None


def _advice(meta: Mapping[str, str]) -> str:
    return f"read it with the offbeat that wrote it ({meta.get('offbeat_version', 'version unknown')})"


# -- decoding --------------------------------------------------------------------------------------------------


def _decoded(directory: Path, what: str, decode: Callable[[Any], _T], data: Any) -> _T:
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise _damaged(directory, what, error) from None


def _damaged(directory: Path, what: str, why: object) -> RunDirectoryError:
    return RunDirectoryError(
        f"{directory}: {what} cannot be decoded ({why}); it is damaged or from another version of offbeat"
    )


def _records(directory: Path, connection: sqlite3.Connection) -> Iterator[Record]:
    event: Callable[[Any], Event] = msgspec.json.Decoder(Event).decode
    commands = msgspec.json.Decoder(tuple[Command, ...]).decode
    for seq, now, body, caused in connection.execute("SELECT seq, now, body, commands FROM events ORDER BY seq"):
        what = f"event {seq}"
        deeds = _decoded(directory, what, commands, caused)
        for command in deeds:
            if isinstance(command, Generate) and len(command.attempts) != len(command.trajectory_ids):
                unequal = f"{len(command.trajectory_ids)} trajectories, {len(command.attempts)} attempts"
                raise _damaged(directory, what, f"a Generate of {unequal}")
        yield Record(seq, now, _decoded(directory, what, event, body), deeds)


def _prompts(directory: Path, connection: sqlite3.Connection) -> Iterator[tuple[int, PromptFacts]]:
    decode = msgspec.msgpack.Decoder(list[int]).decode
    rows = connection.execute("SELECT group_id, prompt_id, dataset, text, answer, token_ids FROM prompts")
    for group_id, prompt_id, dataset, text, answer, token_ids in rows:
        tokens = len(_decoded(directory, f"prompt {group_id}", decode, token_ids))
        yield group_id, PromptFacts(prompt_id, dataset, text, answer, tokens)


def _payloads(directory: Path, connection: sqlite3.Connection) -> Iterator[tuple[tuple[int, int], PayloadFacts]]:
    decode = msgspec.msgpack.Decoder(Trajectory).decode
    columns = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('trajectories')")}
    reward_column = "reward" if "reward" in columns else "NULL"
    rows = connection.execute(f"SELECT trajectory_id, attempt, record, {reward_column} FROM trajectories")
    for trajectory_id, attempt, blob, reward in rows:
        payload = _decoded(directory, f"trajectory {trajectory_id}", decode, blob)
        logprobs = payload.behaviour_logprobs
        facts = PayloadFacts(
            span_versions=tuple(span.version for span in payload.spans),
            tokens=len(payload.token_ids),
            logprobs=len(logprobs),
            logprobs_sound=all(math.isfinite(p) and p <= 1e-5 for p in logprobs),
            finish_reason=payload.finish_reason,
            named=(payload.trajectory_id, payload.attempt),
            reward=reward,
        )
        yield (trajectory_id, attempt), facts
