"""What the world owes the scheduler: events for whatever happens, and never an exception."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offbeat import events as e
from offbeat.backends import messages as m
from offbeat.backends.local import Died, Name
from offbeat.errors import TaskError
from offbeat.live.prompts import PromptBook
from offbeat.live.runlog import RunLog
from offbeat.live.scoring import SCORER
from offbeat.live.versions import VersionShelf
from offbeat.live.world import LiveWorld
from offbeat.records import Prompt, Span, Trajectory
from offbeat.tasks import make_task
from tests.live.conftest import Puppets, settings

ROLLOUT = Name("rollout")
RESPONSE = Trajectory(4, 0, (Span(0, (5, 6), (-0.1, -0.2)),), "stop")
GENERATE = e.Generate(lane=0, version=0, group_id=2, prompt_id=7, trajectory_ids=(4, 5), attempts=(0, 0))

MakeWorld = Callable[..., LiveWorld]


@pytest.fixture
def world(tmp_path: Path, policy: Path, puppets: Puppets) -> MakeWorld:
    """A world on a task of few short prompts, whose workers are puppets; it has said Opened."""

    def make(*overrides: str) -> LiveWorld:
        chosen = settings("task.reward_seconds=0.2", "run.max_attempts=2", *overrides)
        book = PromptBook(make_task(chosen.task, 0), policy, chosen.task.held_out)
        log = RunLog.create(tmp_path / "run.sqlite", {})
        shelf = VersionShelf(tmp_path, 1, "digest")
        made = LiveWorld(tmp_path, chosen, log, puppets, book, shelf, 0, 0.0)  # type: ignore[arg-type]
        assert made.next_event() == e.Opened(0)
        made.scoring.start()
        return made

    return make


def perform(world: LiveWorld, command: e.Command) -> list[e.Event]:
    world.perform(command)
    return [world.next_event() for _ in range(len(world._pending))]


def hear(world: LiveWorld, puppets: Puppets, *said: tuple[Name, Any]) -> list[e.Event]:
    """The events of one poll."""
    puppets.said = list(said)
    world._listen(world._clock())
    return [world.next_event() for _ in range(len(world._pending))]


def sampled(world: LiveWorld, puppets: Puppets) -> None:
    """A response that waits for its reward."""
    perform(world, GENERATE)
    [finished] = hear(world, puppets, (ROLLOUT, m.Sampled(0, RESPONSE, 0, 0.0, 1.0)))
    world.log.record(finished, 1.0, [])
    perform(world, e.Score(4, 0, 2, 7))
    assert hear(world, puppets, (SCORER, m.ScorerUp())) == []


def test_an_answer_that_lies_there_was_in_time_however_late_it_is_read(world: MakeWorld, puppets: Puppets) -> None:
    """The main process may be busy, stopped or starved for longer than a reward has."""
    alive = world()
    sampled(alive, puppets)
    time.sleep(0.25)
    assert hear(alive, puppets, (SCORER, m.ScoreIs(1, 0.5))) == [e.Scored(4, 0, 0.5)]
    assert puppets.started == [SCORER]


def test_a_call_that_is_late_fails_and_costs_the_scorer_its_life(world: MakeWorld, puppets: Puppets) -> None:
    alive = world()
    perform(alive, e.StartLane(0))
    sampled(alive, puppets)
    time.sleep(0.25)
    [failed] = hear(alive, puppets, (ROLLOUT, m.Beat(0, (), (), 0, 1, (), 0)))[1:]
    assert failed == e.ScoreFailed(4, 0, "ran out of time (0.2 s)")
    assert [name for name in puppets.started if name == SCORER] == [SCORER, SCORER]


def test_a_scorer_that_never_comes_up_fails_the_run_with_its_reason(world: MakeWorld, puppets: Puppets) -> None:
    alive = world()
    assert hear(alive, puppets, (SCORER, Died("no file task.jsonl"))) == []
    [failed] = hear(alive, puppets, (SCORER, Died("no file task.jsonl")))
    assert isinstance(failed, e.WorldFailed)
    assert "no file task.jsonl" in failed.reason
    assert puppets.started == [SCORER, SCORER]


@pytest.mark.parametrize(
    "error",
    [
        TaskError("item 4711 cannot be made"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
        KeyError("question"),
    ],
)
def test_a_prompt_that_cannot_be_made_is_rejected(
    world: MakeWorld, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = world()

    def refuse(prompt_id: int) -> Prompt:
        raise error

    monkeypatch.setattr(alive.prompts._task, "prompt", refuse)
    [rejected] = perform(alive, GENERATE)
    assert isinstance(rejected, e.PromptRejected)
    assert rejected.group_id == 2
    assert "4711" in rejected.reason or "prompt 7 cannot be made or encoded" in rejected.reason


def test_a_prompt_that_cannot_be_encoded_is_rejected(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = world()
    monkeypatch.setattr(alive.prompts._task, "prompt", lambda i: Prompt(i, "d", "half a pair \ud800", "a"))
    [rejected] = perform(alive, GENERATE)
    assert isinstance(rejected, e.PromptRejected)
    assert "prompt 7" in rejected.reason


def test_a_prompt_that_does_not_fit_is_rejected_and_logged(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = world()
    monkeypatch.setattr(alive.prompts._task, "prompt", lambda i: Prompt(i, "d", "1" * 60, "a"))
    [rejected] = perform(alive, GENERATE)
    assert isinstance(rejected, e.PromptRejected)
    assert "has 61 tokens" in rejected.reason
    alive.log.record(rejected, 0.0, [])
    assert alive.log.prompt(2).text == "1" * 60


def test_a_reward_is_asked_for_the_prompt_of_the_log(
    world: MakeWorld, puppets: Puppets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing foreign runs again between a response and its reward."""
    alive = world()
    perform(alive, GENERATE)
    alive.log.record(e.Tick(), 0.0, [])
    alive.log.add_trajectory(RESPONSE)
    alive.log.record(e.Finished(4, 0, 0, 0, 0, 2, "stop", 0.0, 1.0), 1.0, [])
    alive.prompts.forget_before(100)
    monkeypatch.setattr(alive.prompts._task, "prompt", None)
    assert perform(alive, e.Score(4, 0, 2, 7)) == []
    hear(alive, puppets, (SCORER, m.ScorerUp()))
    [asked] = [message for _, message in puppets.sent if isinstance(message, m.ScoreThis)]
    assert asked.prompt == alive.log.prompt(2)


def test_prompts_are_forgotten_by_their_own_numbers(world: MakeWorld) -> None:
    """Under evict a prompt is queued again in another group: the numbers of groups run ahead of those of prompts."""
    alive = world()
    log = alive.log
    for group_id, prompt_id in ((40, 3), (41, 5)):
        prompt = alive.prompts.prompt(prompt_id)
        log.add_prompt(group_id, prompt)
        for trajectory_id in (2 * group_id, 2 * group_id + 1):
            log.add_trajectory(Trajectory(trajectory_id, 0, RESPONSE.spans, "stop"))
            log.record(e.Finished(trajectory_id, 0, 0, 0, 0, 2, "stop", 0.0, 1.0), 1.0, [])
            log.record(e.Scored(trajectory_id, 0, 1.0), 1.0, [])
    alive.prompts.prompt(2)
    assert perform(alive, e.Train(0, (40, 41), ((0, 0), (0, 0)))) == []
    assert sorted(alive.prompts._kept) == [3, 5]


def test_a_deed_that_the_disk_refuses_is_an_event(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = world()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(alive.lanes, "start", full)
    assert perform(alive, e.StartLane(0)) == [e.WorldFailed("StartLane: No space left on device")]
