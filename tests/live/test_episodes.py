"""The desk of the episodes: what an attempt that was given up says is dropped; nothing is lost with the process."""

from __future__ import annotations

from typing import Any

import pytest

from offbeat import events as e
from offbeat.backends import messages as m
from offbeat.backends.agent_messages import (
    AbortEpisodes,
    AgentsBeat,
    AgentsHello,
    AskTurn,
    EpisodeIs,
    EpisodeRaised,
    RunEpisode,
    TurnIs,
)
from offbeat.backends.local import Died
from offbeat.live.episodes import AGENTS, EpisodeDesk
from offbeat.records import Prompt, Span

from .conftest import Puppets

PROMPTS = [Prompt(-1, "t", "a", "", (1,)), Prompt(-2, "t", "b", "", (2,))]
SPAN = Span(4, (5, 6), (-0.1, 0.0), None, (True, False))


class Desk:
    def __init__(self, puppets: Puppets) -> None:
        self.puppets = puppets
        self.to_lane: list[Any] = []
        self.desk = EpisodeDesk(puppets, AgentsHello("", {}), self.to_lane.append, 10.0, 3)  # type: ignore[arg-type]
        self.desk.start()

    def begin(self, *trajectory_ids: int, attempt: int = 0, lane: int = 0) -> None:
        attempts = (attempt,) * len(trajectory_ids)
        self.desk.begin(e.Generate(lane, 4, 0, 0, trajectory_ids, attempts), Prompt(0, "t", "x", "", (1, 2)))

    def turn(self, trajectory_id: int, attempt: int = 0, turn: int = 1) -> None:
        """The lane answers a turn."""
        self.desk.sampled(m.TurnSampled(0, trajectory_id, attempt, turn, SPAN, "stop", 9, 1.0, 2.0))

    def hear(self, message: Any, now: float = 0.0) -> list[e.Event]:
        return self.desk.heard(message, now)[1]

    def told(self, kind: type) -> list[Any]:
        return [message for _, message in self.puppets.sent if isinstance(message, kind)]

    def on_lane(self, kind: type) -> list[Any]:
        return [message for message in self.to_lane if isinstance(message, kind)]


@pytest.fixture
def desk(puppets: Puppets) -> Desk:
    return Desk(puppets)


def test_an_episode_becomes_a_trajectory_with_its_reward(desk: Desk) -> None:
    desk.begin(8, 9)
    assert desk.on_lane(m.Sample)[0].episodes
    assert [run.trajectory_id for run in desk.told(RunEpisode)] == [8, 9]
    desk.hear(AskTurn(8, 0, 1, (1, 2), 5))
    assert desk.on_lane(m.TakeTurn) == [m.TakeTurn(0, 8, 0, 1, 4, (1, 2), 5)]
    desk.turn(8)
    assert desk.told(TurnIs) == [TurnIs(8, 0, 1, SPAN, "stop")]
    trajectory, [finished] = desk.desk.heard(EpisodeIs(8, 0, SPAN, "stop", 0.5), 0.0)
    assert trajectory is not None
    assert (trajectory.reward, trajectory.version, trajectory.sampled_tokens) == (0.5, 4, 1)
    assert finished == e.Finished(8, 0, 0, 0, 4, 2, "stop", 1.0, 2.0)
    assert desk.on_lane(m.AbortSamples) == [m.AbortSamples(0, (8,))]


def test_slots_are_held_from_begin_to_end(desk: Desk) -> None:
    desk.begin(0, 1, 2)
    for trajectory_id in (1, 2):
        desk.turn(trajectory_id)
    slots = []
    for trajectory_id in (1, 2):
        [finished] = desk.hear(EpisodeIs(trajectory_id, 0, SPAN, "stop", 0.5))
        assert isinstance(finished, e.Finished)
        slots.append(finished.slot)
    assert slots == [1, 2]
    desk.begin(3)
    desk.turn(3)
    [finished] = desk.hear(EpisodeIs(3, 0, SPAN, "stop", 0.5))
    assert isinstance(finished, e.Finished)
    assert finished.slot == 1


def test_what_an_earlier_attempt_says_changes_nothing(desk: Desk) -> None:
    desk.begin(8)
    desk.begin(8, attempt=1)
    sent = len(desk.puppets.sent)
    assert desk.hear(AskTurn(8, 0, 1, (1, 2), 5)) == []
    assert desk.hear(EpisodeRaised(8, 0, "late")) == []
    assert desk.hear(EpisodeIs(8, 0, SPAN, "stop", 1.0)) == []
    desk.turn(8, attempt=0)
    assert desk.on_lane(m.TakeTurn) == []
    assert len(desk.puppets.sent) == sent
    assert desk.hear(EpisodeRaised(8, 1, "boom")) == [e.GenerationFailed(8, 1, "boom")]


def test_aborted_episodes_are_forgotten(desk: Desk) -> None:
    desk.begin(8)
    desk.desk.abort((8,))
    assert desk.told(AbortEpisodes) == [AbortEpisodes((8,))]
    assert desk.hear(EpisodeIs(8, 0, SPAN, "stop", 1.0)) == []


def test_episodes_fail_with_their_process_and_another_is_started(desk: Desk) -> None:
    desk.begin(8, 9)
    desk.hear(AgentsBeat())
    assert desk.hear(Died("it is gone")) == [e.GenerationFailed(i, 0, "it is gone") for i in (8, 9)]
    assert desk.puppets.started == [AGENTS, AGENTS]
    assert desk.on_lane(m.AbortSamples) == [m.AbortSamples(0, (8,)), m.AbortSamples(0, (9,))]


def test_a_process_that_does_not_listen_is_ended(desk: Desk) -> None:
    desk.hear(AgentsBeat(), now=100.0)
    assert desk.desk.out_of_time(200.0) == [], "nothing is under way"
    desk.begin(8)
    assert desk.desk.out_of_time(109.0) == []
    [failed] = desk.desk.out_of_time(111.0)
    assert isinstance(failed, e.GenerationFailed)
    assert "kept the others from running" in failed.reason


def test_a_process_that_never_comes_up_is_hopeless(desk: Desk) -> None:
    for _ in range(3):
        assert desk.desk.hopeless == ""
        desk.desk._heard_at = None
        desk.hear_nothing = desk.desk._died("no module", 0.0)  # type: ignore[attr-defined]
    assert "did not come up 3 times in a row: no module" in desk.desk.hopeless


def test_an_exam_is_every_prompt_greedy_and_sampled(desk: Desk) -> None:
    desk.desk.examine(e.Evaluate(0, 4), PROMPTS)
    assert [run.trajectory_id for run in desk.told(RunEpisode)] == [-1, -2, -3, -4]
    assert [run.prompt.prompt_id for run in desk.told(RunEpisode)] == [-1, -2, -1, -2]
    for trajectory_id in (-1, -3):
        desk.hear(AskTurn(trajectory_id, 1, 1, (1,), 5))
    assert [turn.greedy for turn in desk.on_lane(m.TakeTurn)] == [True, False]
    events = []
    for trajectory_id, reward in ((-1, 1.0), (-2, 0.5), (-3, 1.0)):
        events += desk.hear(EpisodeIs(trajectory_id, 1, SPAN, "stop", reward))
    events += desk.hear(EpisodeRaised(-4, 1, "boom"))
    assert events[-1] == e.Evaluated(4, 2, 0.5, 1.0), "one that failed is left out"


def test_an_exam_goes_on_in_another_process_and_a_later_round_replaces_it(desk: Desk) -> None:
    desk.desk.examine(e.Evaluate(0, 4), PROMPTS)
    desk.hear(EpisodeIs(-1, 1, SPAN, "stop", 1.0))
    desk.hear(Died("gone"))
    assert sorted(run.trajectory_id for run in desk.told(RunEpisode)[4:]) == [-4, -3, -2]
    desk.desk.examine(e.Evaluate(0, 4), PROMPTS)
    assert desk.hear(EpisodeIs(-2, 1, SPAN, "stop", 1.0)) == []
    events = [event for i in range(1, 5) for event in desk.hear(EpisodeRaised(-i, 2, "boom"))]
    assert events == [e.EvaluationFailed(4, "boom")]
