"""The held-out exam: every mark counts once, none of an earlier round, and the run hears of them meanwhile."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from offbeat import events as e
from offbeat.backends.messages import HeldOutAnswers
from offbeat.live.held_out import HeldOutDesk
from offbeat.live.scoring import Verdict

PROMPTS = 512


class Asking:
    """Stands in for Scoring: the keys that were asked for, in order."""

    def __init__(self) -> None:
        self.keys: list[tuple[object, ...]] = []

    def ask(self, key: tuple[object, ...], prompt: object, response: str, urgent: bool = True) -> None:
        assert not urgent
        self.keys.append(key)


@pytest.fixture
def desk() -> tuple[HeldOutDesk, Asking]:
    asking = Asking()
    book = SimpleNamespace(held_out=[SimpleNamespace(token_ids=())] * PROMPTS, text=str)
    return HeldOutDesk(book, asking), asking  # type: ignore[arg-type]


def answers(version: int) -> HeldOutAnswers:
    return HeldOutAnswers(0, version, ((1,),) * PROMPTS, ((2,),) * PROMPTS)


@pytest.mark.parametrize("seconds", [0.001, 0.2, 7.0])
def test_a_slow_reward_is_heard_of_and_a_fast_one_is_not_told_mark_by_mark(
    desk: tuple[HeldOutDesk, Asking], seconds: float
) -> None:
    exam, asking = desk
    exam.begin(1)
    exam.score(answers(1))
    told: list[tuple[float, e.Event]] = []
    for place, key in enumerate(asking.keys):
        now = 50.0 + seconds * (place + 1)
        event = exam.judged(Verdict(key, 1.0 if key[3] == "greedy" else 0.5, ""), now)
        told += [(now, event)] if event else []
    assert told[-1][1] == e.Evaluated(1, PROMPTS, 1.0, 0.0)
    marks = [(now, event) for now, event in told if isinstance(event, e.Marked)]
    assert len(marks) == len(told) - 1
    assert [event.done for _, event in marks] == sorted({event.done for _, event in marks})
    assert all(event.marks == 2 * PROMPTS for _, event in marks)
    gaps = [after - before for (before, _), (after, _) in pairwise(told)]
    assert max(gaps) <= 1.0 + 2 * seconds
    assert min(gaps[:-1], default=1.0) >= 1.0


def test_marks_of_an_earlier_round_are_not_told(desk: tuple[HeldOutDesk, Asking]) -> None:
    exam, asking = desk
    exam.begin(1)
    exam.score(answers(1))
    exam.begin(1)
    assert all(exam.judged(Verdict(key, 1.0, ""), 100.0 + 9 * i) is None for i, key in enumerate(asking.keys))


def test_a_mark_that_failed_is_progress_and_no_wrong_answer(desk: tuple[HeldOutDesk, Asking]) -> None:
    exam, asking = desk
    exam.begin(1)
    exam.score(answers(1))
    told = [exam.judged(Verdict(k, None if k[4] else 1.0, "raised"), 9.0 * i) for i, k in enumerate(asking.keys)]
    assert told[1] == e.Marked(1, 2, 2 * PROMPTS)
    assert told[-1] == e.Evaluated(1, PROMPTS, 1.0, 1.0)


def test_nothing_is_kept_of_an_exam_that_is_over(desk: tuple[HeldOutDesk, Asking]) -> None:
    exam, asking = desk
    for version in range(3):
        exam.begin(version)
        exam.begin(version)  # its lane was lost
        exam.score(answers(version))
        told = [exam.judged(Verdict(key, 1.0, ""), 0.0) for key in asking.keys]
        asking.keys.clear()
        assert told[-1] == e.Evaluated(version, PROMPTS, 1.0, 1.0)
        exam.score(answers(version))  # of the lane that was lost, late
        assert not asking.keys
    assert not exam._marks
    assert not exam._round
