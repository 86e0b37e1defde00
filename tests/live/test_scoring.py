"""Rewards asked one after the other: who is late is judged fairly, and a scorer that never comes up ends the run."""

from __future__ import annotations

import errno

import pytest

from offbeat.backends.messages import ScorerHello, ScoreThis
from offbeat.live.scoring import AHEAD, SCORER, Scoring
from offbeat.records import Prompt
from tests.live.conftest import Puppets

PROMPT = Prompt(0, "d", "q", "a")


def scoring(puppets: Puppets, attempts: int = 3) -> Scoring:
    made = Scoring(puppets, ScorerHello({}), 2.0, attempts)  # type: ignore[arg-type]
    made.start()
    return made


def asked(puppets: Puppets) -> list[str]:
    return [message.response for _, message in puppets.sent if isinstance(message, ScoreThis)]


def test_a_scorer_that_does_not_come_up_is_hopeless_after_so_many_starts(puppets: Puppets) -> None:
    desk = scoring(puppets)
    desk.ask("a", PROMPT, "x")
    for _ in range(3):
        assert not desk.hopeless
        assert list(desk.died("no module named my_rewards")) == []
    assert "no module named my_rewards" in desk.hopeless
    assert puppets.started == [SCORER] * 3


def test_a_scorer_that_came_up_has_all_its_starts_again(puppets: Puppets) -> None:
    desk = scoring(puppets)
    for _ in range(5):
        assert list(desk.died("slow disk")) == []
        assert list(desk.died("slow disk")) == []
        desk.up(0.0)
    assert not desk.hopeless


def test_a_process_that_cannot_be_made_is_hopeless_and_no_traceback(
    puppets: Puppets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(puppets, "start", refuse)
    assert "Resource temporarily unavailable" in scoring(puppets).hopeless


def test_a_death_costs_one_reward_and_the_others_are_asked_again_in_order(puppets: Puppets) -> None:
    desk = scoring(puppets)
    for i in range(AHEAD + 4):
        desk.ask(i, PROMPT, f"r{i}")
    desk.up(0.0)
    assert asked(puppets) == [f"r{i}" for i in range(AHEAD)]
    [verdict] = desk.died("signal SIGKILL")
    assert (verdict.key, verdict.reward, verdict.reason) == (0, None, "signal SIGKILL")
    puppets.sent.clear()
    desk.up(1.0)
    assert asked(puppets) == [f"r{i}" for i in range(1, AHEAD + 1)]


def test_rollouts_go_before_the_exam_and_each_call_has_its_own_time(puppets: Puppets) -> None:
    desk = scoring(puppets)
    desk.ask("exam", PROMPT, "exam", urgent=False)
    desk.ask("rollout", PROMPT, "rollout")
    assert desk.deadline is None
    desk.up(10.0)
    assert asked(puppets) == ["rollout", "exam"]
    assert desk.deadline == 12.0
    verdict = desk.answered(1, 0.5, "", 11.0)
    assert verdict is not None
    assert (verdict.key, verdict.reward) == ("rollout", 0.5)
    assert desk.deadline == 13.0
    [late] = desk.out_of_time()
    assert (late.key, late.reward) == ("exam", None)
    assert "ran out of time (2 s)" in late.reason
    assert desk.answered(2, 1.0, "", 14.0) is None, "the answer of a scorer that is no more"
