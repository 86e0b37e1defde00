"""Games for one player as episodes: the seed fixes the game however many are played at once, the reward is its own."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence

import pytest

from offbeat.errors import OutOfRoom, SettingsError, TaskError
from offbeat.ports import EpisodeTask
from offbeat.settings import TextArenaTask, settings_from
from offbeat.tasks import make_task

pytest.importorskip("textarena")


class Guesser:
    """Halves the range by what the game answers; `patience` moves, then there is no room left."""

    base_url = api_key = model = ""

    def __init__(self, patience: int = 100) -> None:
        self.patience = patience
        self.heard: list[list[dict[str, str]]] = []
        self.low, self.high, self.last = 1, 20, 0

    async def say(
        self, messages: Sequence[dict[str, str]], stop: Sequence[str] = (), max_tokens: int | None = None
    ) -> str:
        await asyncio.sleep(0)
        self.heard.append(list(messages))
        if len(self.heard) > self.patience:
            raise OutOfRoom("no room")
        if "higher" in messages[-1]["content"].splitlines()[-1] and self.last:
            self.low = self.last + 1
        elif self.last:
            self.high = self.last - 1
        self.last = (self.low + self.high) // 2
        return f"I guess [{self.last}]"


def task(environment: str = "GuessTheNumber-v0", seed: int = 0, **options: int) -> EpisodeTask:
    return make_task(TextArenaTask(environment=environment, options=options), seed)  # type: ignore[return-value]


def test_many_games_at_once_are_the_games_of_their_seeds() -> None:
    made = task()

    async def scenario() -> tuple[list[float], list[int]]:
        players = [Guesser() for _ in range(12)]
        rewards = await asyncio.gather(*(made.episode(made.prompt(i), players[i]) for i in range(12)))
        return rewards, [player.last for player in players]

    rewards, numbers = asyncio.run(scenario())
    assert rewards == [1.0] * 12
    assert len(set(numbers)) > 3
    random.random()
    assert asyncio.run(scenario()) == (rewards, numbers)


def test_a_conversation_only_grows_and_holds_no_move_twice() -> None:
    made, player = task(), Guesser()
    asyncio.run(made.episode(made.prompt(1), player))
    for before, after in zip(player.heard, player.heard[1:], strict=False):
        assert after[: len(before)] == before
        assert [m["role"] for m in after[len(before) :]] == ["assistant", "user"]
        assert not re.search(r"I guess", after[-1]["content"])


def test_a_game_that_is_not_ended_has_no_reward() -> None:
    made = task()
    assert asyncio.run(made.episode(made.prompt(0), Guesser(patience=0))) == 0.0


def test_prompts_are_fixed_and_the_exam_is_another() -> None:
    made = task("TowerOfHanoi-v0")
    made.validate()
    assert [p.prompt_id for p in made.held_out(2)] == [-1, -2]
    assert made.prompt(3) == task("TowerOfHanoi-v0").prompt(3)


@pytest.mark.parametrize(
    ("environment", "options", "words"),
    [
        ("GuesTheNumber-v0", {}, "did you mean GuessTheNumber-v0"),
        ("TicTacToe-v0", {}, "no game for one player"),
        ("GuessTheNumber-v0", {"nonsense": 1}, "mend task.options"),
    ],
)
def test_what_cannot_be_played_is_one_line(environment: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        task(environment, **options).validate()


def test_a_preset_cannot_be_warm_started_on_games() -> None:
    with pytest.raises(SettingsError, match=r"model\.path"):
        settings_from({"task": {"name": "textarena", "environment": "GuessTheNumber-v0"}})
