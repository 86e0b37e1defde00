"""Reading a run directory: what is in it, while it is written, after a kill, and what is refused in one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from offbeat import events as e
from offbeat.errors import RunDirectoryError
from offbeat.report.read import DATABASE, read_prompt_ids, read_run, read_trajectories
from offbeat.report.story import tell
from tests.report.simulated_run import EditableRun, simulated_run


@pytest.fixture(scope="module")
def made() -> EditableRun:
    return simulated_run()


def test_everything_written_is_read(made: EditableRun, tmp_path: Path) -> None:
    run = read_run(made.write(tmp_path / "run"))
    assert [(r.now, r.event, list(r.commands)) for r in run.records] == [
        (row.now, row.event, row.commands) for row in made.rows
    ]
    assert [r.seq for r in run.records] == list(range(1, len(made.rows) + 1))
    assert run.settings == made.settings
    assert set(run.payloads) == set(made.payloads)
    assert {g: p.tokens for g, p in run.prompts.items()} == {g: len(ids) for g, ids in made.prompt_ids.items()}
    assert run.wall_seconds == made.rows[-1].now


def test_payload_facts_are_those_of_the_payload(made: EditableRun, tmp_path: Path) -> None:
    run = read_run(made.write(tmp_path / "run"))
    for key, payload in made.payloads.items():
        facts = run.payloads[key]
        assert facts.span_versions == tuple(span.version for span in payload.spans)
        assert facts.tokens == facts.logprobs == len(payload.token_ids)
        assert facts.logprobs_sound
        assert facts.named == key
        assert facts.reward == made.rewards.get(key)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 0.5])
def test_unsound_logprobs_are_noticed(made: EditableRun, tmp_path: Path, bad: float) -> None:
    key, payload = next(iter(made.payloads.items()))
    span = payload.spans[0]
    lied = msgspec.structs.replace(span, behaviour_logprobs=(bad, *span.behaviour_logprobs[1:]))
    changed = EditableRun(made.settings, payloads={key: msgspec.structs.replace(payload, spans=(lied,))})
    assert not read_run(changed.write(tmp_path / "run")).payloads[key].logprobs_sound


def test_full_payloads_and_prompts(made: EditableRun, tmp_path: Path) -> None:
    run = read_run(made.write(tmp_path / "run"))
    keys = sorted(made.payloads)[3:7]
    assert list(read_trajectories(run, keys)) == [made.payloads[key] for key in keys]
    assert list(read_prompt_ids(run, [2, 0])) == [made.prompt_ids[2], made.prompt_ids[0]]
    with pytest.raises(RunDirectoryError, match="trajectory 7, attempt 99 is not stored"):
        list(read_trajectories(run, [(7, 99)]))
    with pytest.raises(RunDirectoryError, match="prompt of group 12345 is not stored"):
        list(read_prompt_ids(run, [12345]))


def test_a_run_without_a_reward_column(made: EditableRun, tmp_path: Path) -> None:
    directory = made.write(tmp_path / "run")
    with closing(sqlite3.connect(directory / DATABASE)) as db, db:
        db.execute("ALTER TABLE trajectories DROP COLUMN reward")
    assert all(facts.reward is None for facts in read_run(directory).payloads.values())


def test_a_run_is_read_while_it_is_written(made: EditableRun, tmp_path: Path) -> None:
    """What is committed is seen, what is not is not, and the writer is not held up."""
    directory = made.write(tmp_path / "run")
    writer = sqlite3.connect(directory / DATABASE, isolation_level=None, timeout=0.1)
    insert = "INSERT INTO events(now, kind, body, commands) VALUES(99.0, 'Tick', '{\"event\":\"Tick\"}', '[]')"
    writer.execute("BEGIN IMMEDIATE")
    writer.execute(insert)
    assert len(read_run(directory).records) == len(made.rows)
    writer.execute("COMMIT")
    again = read_run(directory)
    assert again.records[-1].event == e.Tick()
    assert len(again.records) == len(made.rows) + 1
    writer.close()


def test_a_killed_runs_write_ahead_log_is_read(made: EditableRun, tmp_path: Path) -> None:
    """The last change is only in the log that a kill leaves beside the main file, and no index of it is there."""
    directory = made.write(tmp_path / "run")
    writer = sqlite3.connect(directory / DATABASE, isolation_level=None)
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute("UPDATE meta SET value = 'late' WHERE key = 'created'")
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in (DATABASE, f"{DATABASE}-wal"):
        (killed / name).write_bytes((directory / name).read_bytes())
    writer.close()
    assert (killed / f"{DATABASE}-wal").stat().st_size > 0
    assert read_run(killed).meta["created"] == "late"


def test_reading_changes_nothing(made: EditableRun, tmp_path: Path) -> None:
    directory = made.write(tmp_path / "run")
    before = (directory / DATABASE).read_bytes()
    read_run(directory)
    assert (directory / DATABASE).read_bytes() == before


def test_an_empty_log_is_a_run(made: EditableRun, tmp_path: Path) -> None:
    run = read_run(EditableRun(made.settings).write(tmp_path / "run"))
    assert run.records == ()
    assert run.wall_seconds == 0.0
    assert tell(run).outcome == "running"


# -- refused ---------------------------------------------------------------------------------------------------


def _no_directory(directory: Path) -> None:
    (directory / DATABASE).unlink()
    for rest in directory.iterdir():
        rest.unlink()
    directory.rmdir()


def _no_database(directory: Path) -> None:
    (directory / DATABASE).unlink()


def _not_a_database(directory: Path) -> None:
    for rest in directory.iterdir():
        rest.unlink()
    (directory / DATABASE).write_bytes(b"no database at all " * 300)


def _sql(statement: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        with closing(sqlite3.connect(directory / DATABASE)) as db, db:
            db.execute(statement)

    return damage


def _one_attempt_too_few(directory: Path) -> None:
    find = "SELECT seq, commands FROM events WHERE commands LIKE '%Generate%' ORDER BY seq LIMIT 1"
    with closing(sqlite3.connect(directory / DATABASE)) as db, db:
        seq, caused = db.execute(find).fetchone()
        commands = msgspec.json.decode(caused)
        next(command for command in commands if command["command"] == "Generate")["attempts"].pop()
        db.execute("UPDATE events SET commands = ? WHERE seq = ?", (msgspec.json.encode(commands).decode(), seq))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_directory, "no such directory"),
        (_no_database, "holds no run.sqlite"),
        (_not_a_database, "cannot be read"),
        (_sql("DROP TABLE prompts"), "has no table prompts"),
        (_sql("UPDATE meta SET value = '2' WHERE key = 'schema'"), "has schema 2, this offbeat reads schema 1"),
        (_sql("DELETE FROM meta WHERE key = 'schema'"), "has schema none"),
        (_sql("DELETE FROM meta WHERE key = 'settings'"), "settings cannot be read"),
        (_sql("UPDATE meta SET value = '{\"run\": {\"seed\": -1}}' WHERE key = 'settings'"), "settings cannot be read"),
        (_sql('UPDATE events SET body = \'{"event":"Unheard"}\' WHERE seq = 3'), "event 3 cannot be decoded"),
        (_sql("UPDATE events SET commands = '[{' WHERE seq = 4"), "event 4 cannot be decoded"),
        (_one_attempt_too_few, "cannot be decoded (a Generate of 4 trajectories, 3 attempts)"),
        (_sql("UPDATE trajectories SET record = x'00' WHERE trajectory_id = 0"), "trajectory 0 cannot be decoded"),
        (_sql("UPDATE prompts SET token_ids = x'c1' WHERE group_id = 2"), "prompt 2 cannot be decoded"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    made: EditableRun, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    directory = made.write(tmp_path / "run")
    damage(directory)
    with pytest.raises(RunDirectoryError) as caught:
        read_run(directory)
    assert words in str(caught.value)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_page_torn_out_of_the_middle(made: EditableRun, tmp_path: Path) -> None:
    directory = made.write(tmp_path / "run")
    with closing(sqlite3.connect(directory / DATABASE)) as db, db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = (directory / DATABASE).read_bytes()
    for rest in directory.glob(f"{DATABASE}-*"):
        rest.unlink()
    (directory / DATABASE).write_bytes(whole[: len(whole) // 3])
    with pytest.raises(RunDirectoryError, match="damaged"):
        read_run(directory)


# -- the simulated run is what it claims to be -----------------------------------------------------------------


def test_the_simulated_run_has_every_kind_of_trouble(made: EditableRun) -> None:
    kinds = {type(row.event) for row in made.rows}
    assert {e.LaneLost, e.PromptRejected, e.StopRequested} <= kinds
    assert sum(isinstance(row.event, e.Opened) for row in made.rows) == 2
    commands = [command for row in made.rows for command in row.commands]
    assert any(isinstance(c, e.Abort) for c in commands)
    assert any(isinstance(c, e.Generate) and max(c.attempts) > 0 for c in commands)
    trained = [row.event for row in made.rows if isinstance(row.event, e.Trained)]
    assert any(event.report.skipped_updates for event in trained)
