"""textarena: any of its games for one player, by name, as episodes.

The game speaks first: its first words are the prompt. Each answer of the policy is a move, what the game says to it
comes next, until the game is over. The reward is the game's, at least 0. Games draw from Python's global random
numbers: each has a stream of its own here, however many are played at once, so a prompt id fixes the game.
A change of prompts or rewards makes a new file (v1). The library is imported when a task is made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from offbeat.errors import OutOfRoom, TaskError
from offbeat.eventtime.streams import stream_seed
from offbeat.ports import Agent
from offbeat.records import Prompt
from offbeat.settings import TextArenaTask
from offbeat.tasks.verdicts import one_line

PLAYER = 0
SAMPLE = 4
MOST_MOVES = 256


class Game:
    """One game. What it says is new since it last spoke; what the player said is left out."""

    def __init__(self, make: Callable[[], Any], seed: int) -> None:
        kept = random.getstate()
        random.seed(seed)
        self._random = random.getstate()
        random.setstate(kept)
        self.over = False
        with self._own_stream():
            self._game = make()
            self._game.reset(num_players=1, seed=seed % 2**32)

    def says(self) -> str:
        with self._own_stream():
            _, messages = self._game.get_observation()
        return "\n".join(str(text).strip() for sender, text, _ in messages if sender != PLAYER)

    def move(self, action: str) -> None:
        with self._own_stream():
            self.over, _ = self._game.step(action)

    def reward(self) -> float:
        with self._own_stream():
            rewards, _ = self._game.close()
        return min(1.0, max(0.0, float((rewards or {}).get(PLAYER, 0.0))))

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        kept = random.getstate()
        random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(kept)


class TextArena:
    """Training and exam play other games: their seeds are of other streams."""

    name = "textarena"

    def __init__(self, settings: TextArenaTask, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._make = _library(settings.environment, settings.options)

    def prompt(self, prompt_id: int) -> Prompt:
        if prompt_id < 0:
            raise ValueError(f"prompt_id {prompt_id}: training prompts are numbered from 0")
        return self._prompt(prompt_id)

    def held_out(self, count: int) -> list[Prompt]:
        return [self._prompt(-1 - i) for i in range(count)]

    def reward(self, prompt: Prompt, response: str) -> float:
        """Raises TaskError: only a game that was played has a reward."""
        raise TaskError("task textarena: a text has no reward, only a game that was played has")

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        """The same seed must be the same game."""
        for prompt_id in range(SAMPLE):
            first, again = self._prompt(prompt_id).text, self._prompt(prompt_id).text
            if first != again or not first:
                raise TaskError(
                    f"task.environment = {self._settings.environment!r}: game {prompt_id} does not begin twice with the"
                    " same words; choose another"
                )

    async def episode(self, prompt: Prompt, agent: Agent) -> float:
        game = self._game(prompt.prompt_id)
        messages = [{"role": "user", "content": game.says()}]
        for _ in range(MOST_MOVES):
            try:
                said = await agent.say(messages)
            except OutOfRoom:
                return 0.0
            game.move(said)
            if game.over:
                return game.reward()
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": game.says()}]
        return 0.0

    def _prompt(self, prompt_id: int) -> Prompt:
        return Prompt(prompt_id, self._settings.environment, self._game(prompt_id).says(), "")

    def _game(self, prompt_id: int) -> Game:
        seed = stream_seed(self._seed, self.name, self._settings.environment, prompt_id)
        try:
            return Game(self._make, seed)
        except Exception as error:  # each game checks its options and players in its own way
            raise TaskError(
                f"task.environment = {self._settings.environment!r}: no game for one player can be made with these"
                f" options ({type(error).__name__}: {one_line(str(error))}); choose another, or mend task.options"
            ) from error


def _library(environment: str, options: dict[str, Any]) -> Callable[[], Any]:
    """What makes a game, without the wrappers that repeat all that was said."""
    try:
        import textarena
        from textarena.envs.registration import ENV_REGISTRY
    except ImportError as error:
        raise TaskError(
            f"task.name = 'textarena': cannot be imported ({one_line(str(error))});"
            " run pip install 'offbeat[textarena]'"
        ) from None
    raw = f"{environment}-raw"
    if raw not in ENV_REGISTRY:
        names = sorted(name.removesuffix("-raw") for name in ENV_REGISTRY if name.endswith("-raw"))
        close = get_close_matches(environment, names) or ["GuessTheNumber-v0", "..."]
        raise TaskError(f"task.environment = {environment!r}: textarena has none; did you mean {', '.join(close)}?")
    return lambda: textarena.make(raw, **options)
