"""Episodes under way: what each has said and been given so far, and the endpoint's calls on their way to the policy.

Invariants: C1, every token of an episode was sampled by its version; what the learner gets is token for token what the
policy read and said; a conversation that is not gone on with but changed is refused. This is the `Hub` of an endpoint
whose engines are elsewhere: turns are asked of the main process. Knows no task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from offbeat.backends.agent_messages import AskTurn, EpisodeIs, RunEpisode, TurnIs
from offbeat.errors import EngineError
from offbeat.flow.pins import PinError, Pins
from offbeat.ports import Request, Sampling
from offbeat.records import FinishReason, Span
from offbeat.serve.bodies import BadRequest
from offbeat.serve.calls import Call
from offbeat.serve.hub import Order
from offbeat.serve.options import ServeOptions
from offbeat.settings import RolloutSettings

SESSIONS = 1 << 20


@dataclass
class Episode:
    """`token_ids` [L] and what belongs to them: all after the prompt, given tokens masked."""

    asked: RunEpisode
    token_ids: list[int] = field(default_factory=list)
    behaviour_logprobs: list[float] = field(default_factory=list)
    supports: list[tuple[int, ...] | None] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    turn: int = 0
    call: Call | None = None
    finish_reason: FinishReason = "stop"

    @property
    def context_ids(self) -> tuple[int, ...]:
        return (*self.asked.prompt.token_ids, *self.token_ids)

    def give(self, token_ids: Sequence[int]) -> None:
        """Tokens that nobody sampled: context of what follows."""
        self.token_ids += token_ids
        self.behaviour_logprobs += [0.0] * len(token_ids)
        self.supports += [(token,) for token in token_ids]
        self.mask += [False] * len(token_ids)

    def say(self, span: Span, taken: int) -> None:
        """The first `taken` tokens of a turn's answer: the others nobody has seen."""
        self.token_ids += span.token_ids[:taken]
        self.behaviour_logprobs += span.behaviour_logprobs[:taken]
        self.supports += (span.behaviour_support or (None,) * len(span.token_ids))[:taken]
        self.mask += [True] * taken

    def ended(self, reward: float) -> EpisodeIs:
        """Raises EngineError for an episode in which the policy said nothing."""
        if not any(self.mask):
            raise EngineError("the episode ended without a token of the policy")
        last = max(i for i, sampled in enumerate(self.mask) if sampled) + 1
        sampled = [kept for kept, own in zip(self.supports[:last], self.mask, strict=False) if own]
        cut = any(kept is not None for kept in sampled)
        span = Span(
            version=self.asked.version,
            token_ids=tuple(self.token_ids[:last]),
            behaviour_logprobs=tuple(self.behaviour_logprobs[:last]),
            behaviour_support=tuple(kept or () for kept in self.supports[:last]) if cut else None,
            loss_mask=None if all(self.mask[:last]) else tuple(self.mask[:last]),
        )
        return EpisodeIs(self.asked.trajectory_id, self.asked.attempt, span, self.finish_reason, reward)


def session_of(asked: RunEpisode) -> str:
    return f"episode.{asked.trajectory_id}.{asked.attempt}"


class PolicyDirectory:
    """The source of the endpoint, as far as it needs one: name and tokenizer."""

    def __init__(self, policy: Path) -> None:
        self.name, self.policy = "policy", policy


class EpisodeHub:
    """`say` sends AskTurn to the main process, which answers with TurnIs."""

    def __init__(self, policy: Path, rollout: RolloutSettings, say: Callable[[Any], None]) -> None:
        self.source: Any = PolicyDirectory(policy)
        self.options = ServeOptions(context=rollout.context, max_new_tokens=rollout.context, max_calls=1 << 20)
        self.pins = Pins(float("inf"), SESSIONS, SESSIONS, SESSIONS)
        self.calls: dict[int, Call] = {}
        self.dead = ""
        self.episodes: dict[str, Episode] = {}
        self._most_new = rollout.max_new_tokens
        self._sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
        self._say = say

    def begin(self, asked: RunEpisode) -> Episode:
        """An episode, known to the endpoint by the session `session_of(asked)`."""
        episode = self.episodes[session_of(asked)] = Episode(asked)
        self.pins.publish(asked.version)
        self.pins.ready(asked.version)
        return episode

    def end(self, asked: RunEpisode) -> None:
        """Forget an episode; a call of it that is under way fails."""
        episode = self.episodes.pop(session_of(asked), None)
        if episode is not None and episode.call is not None:
            episode.call.failed("the episode is over")
        if not any(other.asked.version == asked.version for other in self.episodes.values()):
            self.pins.failed(asked.version)

    def answered(self, turn: TurnIs) -> None:
        """What the policy said; of a turn that nobody waits for any more it is dropped."""
        episode = self.episodes.get(f"episode.{turn.trajectory_id}.{turn.attempt}")
        if episode is not None and episode.call is not None and episode.turn == turn.turn:
            episode.call.sampled((turn.span,), turn.finish_reason, asyncio.get_running_loop().time())

    async def have(self, version: int) -> None:
        raise PinError("unknown-version", f"version {version} answers no episode now")

    @contextlib.contextmanager
    def call(self, orders: Sequence[Order], session: str | None, version: int | None) -> Iterator[list[Call]]:
        """As `Hub.call`: ask for the next turn of an episode. Raises PinError, BadRequest."""
        episode = self.episodes.get(session or "")
        if episode is None:
            raise PinError("session-over", f"session {session!r} is no episode that is under way")
        asked = episode.asked
        if version is not None and version != asked.version:
            raise PinError("other-version", f"this episode is of version {asked.version}, the call asks for {version}")
        if len(orders) != 1 or episode.call is not None:
            raise BadRequest("an episode has one call under way, with one response", "n")
        given, most = self._next_turn(episode, orders[0])
        episode.give(given)
        episode.turn += 1
        request = Request(asked.trajectory_id, asked.version, episode.context_ids, 0, most, self._sampling)
        call = episode.call = Call(request, session, asyncio.get_running_loop().time())
        call.settled = partial(self._settled, episode, call)
        self._say(AskTurn(asked.trajectory_id, asked.attempt, episode.turn, request.prompt_ids, most))
        try:
            yield [call]
        finally:  # a turn that nobody waited for to its end was never said
            if episode.call is call:
                episode.call = None

    def _settled(self, episode: Episode, call: Call) -> None:
        """An answer is whole: the episode may end, or go on, before its client's connection is done with it."""
        if episode.call is call:
            episode.call = None
            episode.say(call.spans[0], call.taken)
            full = call.finish_reason == "length" and len(episode.token_ids) >= self._most_new
            episode.finish_reason = "length" if full else "stop"

    def _next_turn(self, episode: Episode, order: Order) -> tuple[tuple[int, ...], int]:
        """What is given before the turn, and its most tokens. Raises BadRequest for what no episode goes on with."""
        if order.sampling not in (Sampling(), self._sampling):
            raise BadRequest("the run's settings say how an episode is sampled; leave temperature, top_p and top_k out")
        known = episode.context_ids
        if order.prompt_ids[: len(known)] != known:
            raise BadRequest(
                "the conversation does not begin with the prompt and all that was said: an episode only grows",
                "messages",
                "conversation_changed",
            )
        given = order.prompt_ids[len(known) :]
        room = self._most_new - len(episode.token_ids) - len(given)
        if room < 1:
            raise BadRequest(
                f"the episode has no room left for another turn: its context length is {self._most_new} new tokens",
                "messages",
                "context_length_exceeded",
            )
        return given, min(order.max_new_tokens, room)
