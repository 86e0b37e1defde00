"""A rollout process over an engine that says what a test wants: every trajectory it was given is answered once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offbeat.backends import messages as m
from offbeat.backends.parcels import take_parcel
from offbeat.backends.rollout_process import RolloutProcess
from offbeat.errors import EngineError
from offbeat.ports import Completion, Parcel, Request
from offbeat.records import Span
from offbeat.rollout.engine import NonFiniteLogits
from offbeat.settings import load_settings

SPAN = Span(0, (7, 8), (-0.1, -0.2))


class ToyEngine:
    """ports.Generator that decodes nothing: `done` and `broken` are what the next step ends."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.done: list[int] = []
        self.broken: list[int] = []
        self.unloaded: list[int] = []

    def submit(self, request: Request) -> None:
        if len(request.prompt_ids) > 10:
            raise EngineError("the prompt does not fit")
        self.requests[request.request_id] = request

    def attach(self, parcel: Parcel) -> None:
        self.submit(parcel.request)

    def detach(self, request_ids: Sequence[int], keep_cache: bool = True) -> list[Parcel]:
        return [Parcel(self.requests.pop(i), (SPAN,)) for i in request_ids if i in self.requests]

    def abort(self, request_ids: Sequence[int]) -> None:
        self.detach(request_ids)

    def unload(self, version: int) -> None:
        self.unloaded.append(version)

    def step(self) -> list[Completion]:
        if self.broken:
            broken, self.broken = self.broken, []
            for request_id in broken:
                del self.requests[request_id]
            raise NonFiniteLogits(tuple(broken), (0,))
        done, self.done = self.done, []
        for request_id in done:
            del self.requests[request_id]
        return [Completion(request_id, 0, (SPAN,), "stop") for request_id in done]

    def decoded(self) -> dict[int, int]:
        return dict.fromkeys(self.requests, 2)

    def parked(self) -> tuple[int, ...]:
        return ()


class Ear:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def send(self, message: Any) -> None:
        self.heard.append(message)

    def take(self, kind: type) -> list[Any]:
        found = [message for message in self.heard if isinstance(message, kind)]
        self.heard = [message for message in self.heard if not isinstance(message, kind)]
        return found


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def process(tmp_path: Path, ear: Ear) -> RolloutProcess:
    settings = load_settings(
        None, ["rollout.slots=2", "rollout.lanes=2", "rollout.lanes_per_process=2", "schedule.group_size=2"]
    )
    made = RolloutProcess(ear, m.RolloutHello(str(tmp_path), {}, 0.0), settings, ToyEngine())  # type: ignore[arg-type]
    for lane in (0, 1):
        made.take(m.OpenLane(lane))
    assert ear.take(m.LaneUp) == [m.LaneUp(0, 2), m.LaneUp(1, 2)]
    return made


def feed(process: RolloutProcess) -> None:
    for lane in process.lanes.values():
        lane.feed()
    process.feed_held_out()


def sample(lane: int, *trajectory_ids: int, prompt: int = 3) -> m.Sample:
    return m.Sample(lane, 0, (1,) * prompt, trajectory_ids, (0,) * len(trajectory_ids))


def test_no_more_than_its_slots_are_with_the_engine(process: RolloutProcess, ear: Ear) -> None:
    process.take(sample(0, 0, 1, 2, 3))
    process.take(sample(1, 4))
    feed(process)
    assert sorted(process.engine.requests) == [0, 1, 4]
    process.engine.done = [1]
    process.decode()
    [sampled] = ear.take(m.Sampled)
    assert (sampled.lane, sampled.trajectory.trajectory_id, sampled.slot) == (0, 1, 1)
    feed(process)
    assert sorted(process.engine.requests) == [0, 2, 4]


def test_what_the_engine_refuses_or_loses_is_a_failure_by_name(process: RolloutProcess, ear: Ear) -> None:
    process.take(sample(0, 0, 1, prompt=11))
    process.take(sample(0, 2, 3))
    feed(process)
    assert [(f.trajectory_id, f.reason) for f in ear.take(m.SampleFailed)] == [
        (0, "the prompt does not fit"), (1, "the prompt does not fit"),
    ]  # fmt: skip
    process.engine.broken = [3]
    process.decode()
    [failed] = ear.take(m.SampleFailed)
    assert failed.trajectory_id == 3
    assert sorted(process.lanes[0].attempts) == [2]


def test_what_leaves_is_left_as_parcels_once(process: RolloutProcess, ear: Ear, tmp_path: Path) -> None:
    process.take(sample(0, 0, 1, 2))
    feed(process)
    process.engine.done = [0]
    process.decode()
    process.take(m.GiveUpSamples(0, (0, 1, 2, 99), True))
    [given] = ear.take(m.SamplesGivenUp)
    assert (given.trajectory_ids, given.tokens, given.slots) == ((1, 2), (2, 0), (1, -1))
    assert take_parcel(tmp_path, 1, 0).token_ids == SPAN.token_ids
    process.take(m.TakeUpSamples(1, (2, 1), (0, 0)))
    feed(process)
    assert sorted(process.engine.requests) == [2], "the parcel of 1 was read already"
    [failed] = ear.take(m.SampleFailed)
    assert (failed.lane, failed.trajectory_id) == (1, 1)
    process.engine.done = [2]
    process.decode()
    assert [(sampled.lane, sampled.trajectory.trajectory_id) for sampled in ear.take(m.Sampled)] == [(0, 0), (1, 2)]


def test_an_abort_frees_the_slot_and_the_queue(process: RolloutProcess, ear: Ear) -> None:
    process.take(sample(0, 0, 1, 2, 3))
    feed(process)
    process.take(m.AbortSamples(0, (0, 2, 99)))
    feed(process)
    assert sorted(process.engine.requests) == [1, 3]
    assert ear.take(m.SampleFailed) == []


def test_messages_for_a_lane_that_is_not_open_are_for_nobody(process: RolloutProcess, ear: Ear) -> None:
    process.take(sample(7, 0, 1))
    feed(process)
    assert process.engine.requests == {}
    assert ear.heard == []


def test_a_version_is_held_as_long_as_a_lane_has_it(process: RolloutProcess) -> None:
    process.holders = {0: {0, 1}}
    process.take(m.UnloadWeights(0, 0))
    assert process.engine.unloaded == []
    process.take(m.UnloadWeights(1, 0))
    assert process.engine.unloaded == [0]


def test_the_exam_has_slots_of_its_own_and_one_answer_of_each_kind(process: RolloutProcess, ear: Ear) -> None:
    process.take(sample(0, 0, 1))
    process.take(m.AnswerHeldOut(1, 0, ((1,), (2,), (3,))))
    answered = 0
    while not (found := ear.take(m.HeldOutAnswers)):
        feed(process)
        running = [i for i in process.engine.requests if i < 0]
        assert 0 < len(running) <= process.spare
        process.engine.done = running[:1]
        process.decode()
        answered += 1
    assert answered == 6
    [answers] = found
    assert (answers.lane, len(answers.greedy), len(answers.sampled)) == (1, 3, 3)
    assert sorted(process.engine.requests) == [0, 1]


def episodes(lane: int, *trajectory_ids: int, attempt: int = 0) -> m.Sample:
    return m.Sample(lane, 0, (1,), trajectory_ids, (attempt,) * len(trajectory_ids), episodes=True)


def turn(lane: int, trajectory_id: int, number: int, attempt: int = 0, **more: Any) -> m.TakeTurn:
    return m.TakeTurn(lane, trajectory_id, attempt, number, 0, (1, 2, 3), 5, **more)


def test_an_episode_has_a_slot_only_while_a_turn_is_decoded(process: RolloutProcess, ear: Ear) -> None:
    process.take(episodes(0, 7, 8, 9))
    feed(process)
    assert not process.engine.requests
    assert not process.lanes[0].busy
    for trajectory_id in (7, 8, 9):
        process.take(turn(0, trajectory_id, 1))
    feed(process)
    assert sorted(process.engine.requests) == [7, 8]
    process.engine.done = [7]
    process.decode()
    [sampled] = ear.take(m.TurnSampled)
    assert (sampled.trajectory_id, sampled.turn, sampled.span, sampled.slot) == (7, 1, SPAN, 0)
    feed(process)
    assert sorted(process.engine.requests) == [8, 9], "the freed slot is another's while the tool works"
    beat = process.lanes[0].beat(process.engine.decoded(), (), 0)
    assert dict(zip(beat.trajectory_ids, beat.tokens, strict=True)) == {7: 2, 8: 2, 9: 2}
    assert beat.busy_slots == 2
    process.take(turn(0, 7, 2))
    process.engine.done = [8]
    process.decode()
    feed(process)
    assert process.lanes[0].beat(process.engine.decoded(), (), 0).tokens[0] == 4, "tokens of a trajectory never fall"
    process.take(m.AbortSamples(0, (7, 8, 9)))
    assert not process.engine.requests
    assert not process.lanes[0].attempts
    assert process.lanes[0].free_slots in ([0, 1], [1, 0])


def test_turns_of_an_attempt_that_was_given_up_are_not_sampled(process: RolloutProcess, ear: Ear) -> None:
    process.take(episodes(0, 7))
    process.take(m.AbortSamples(0, (7,)))
    process.take(turn(0, 7, 1))
    process.take(episodes(0, 7, attempt=1))
    process.take(turn(0, 7, 1, attempt=0))
    feed(process)
    assert not process.engine.requests
    process.take(turn(0, 7, 1, attempt=1))
    process.take(turn(0, 7, 2, attempt=1))
    feed(process)
    process.engine.done = [7]
    process.decode()
    [sampled] = ear.take(m.TurnSampled)
    assert sampled.turn == 2, "a turn that was asked again replaces the one before"


def test_a_turn_that_does_not_fit_fails_its_episode(process: RolloutProcess, ear: Ear) -> None:
    process.take(episodes(0, 7))
    process.take(m.TakeTurn(0, 7, 0, 1, 0, (1,) * 11, 5))
    feed(process)
    [failed] = ear.take(m.SampleFailed)
    assert (failed.trajectory_id, failed.attempt) == (7, 0)
    assert not process.lanes[0].attempts


def test_held_out_turns_take_spare_slots_only(process: RolloutProcess, ear: Ear) -> None:
    for trajectory_id in (-1, -2):
        process.take(turn(0, trajectory_id, 1, greedy=trajectory_id == -1))
    process.exam_turns.feed(process.engine, 0.0)
    assert [r.sampling.temperature for r in process.engine.requests.values()] == [0.0]
    process.engine.done = [-1]
    process.decode()
    [sampled] = ear.take(m.TurnSampled)
    assert (sampled.trajectory_id, sampled.lane) == (-1, 0)
    process.exam_turns.feed(process.engine, 0.0)
    assert [r.sampling.temperature for r in process.engine.requests.values()] == [1.0]
