"""What offbeat asks of the world, as Protocols. A part is right when it passes its suite in `offbeat.testing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from offbeat.events import Command, Event
from offbeat.records import Batch, FinishReason, Prompt, Span, StepReport


class World(Protocol):
    """Where events come from and commands go: live processes or a simulator's heap.

    Leases run while the world listens. One that could hear nobody for a while says so, with `Suspended`, before it
    tells what it heard since; a jump of virtual time is not such a while.
    """

    @property
    def now(self) -> float:
        """Seconds of run time at the event last returned; never decreases, also across resumes."""

    def next_event(self) -> Event:
        """Wait for the next event and return it."""

    def perform(self, command: Command) -> None:
        """Begin to carry a command out; what comes of it arrives as events. Never raises for a remote failure."""


class Journal(Protocol):
    """The durable record. `record` returns only when the event and its commands are committed together."""

    def record(self, event: Event, now: float, commands: Sequence[Command]) -> None: ...


class Sampling(msgspec.Struct, frozen=True):
    """How a response is sampled. All of it is part of what *behaviour* means.

    temperature 0 is greedy; top_k 0 and top_p 1 keep every token.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


class Request(msgspec.Struct, frozen=True):
    """One response to be sampled: prompt token ids [P] under `version`, at most `max_new_tokens` more tokens.

    `request_id` is the caller's; `seed` alone (with the weights) fixes the sampled tokens.
    """

    request_id: int
    version: int
    prompt_ids: tuple[int, ...]
    seed: int
    max_new_tokens: int
    sampling: Sampling = Sampling()


class Completion(msgspec.Struct, frozen=True):
    """A finished request. `slot` is where it was decoded; the spans' log-probs are the behaviour policy's.

    One span, of the request's version, unless `switch` was asked for.
    """

    request_id: int
    slot: int
    spans: tuple[Span, ...]
    finish_reason: FinishReason

    @property
    def span(self) -> Span:
        """The only span. Raises ValueError where there are several."""
        (span,) = self.spans
        return span

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for span in self.spans for token in span.token_ids)


class Parcel(msgspec.Struct, frozen=True):
    """An unfinished request on its way from one engine to another of the same model, or put aside by its own.

    The version of `request` samples the next token; `spans` are all tokens sampled so far. `cache` holds the keys
    and values of the first `cached` tokens of prompt + response: float32, little-endian, C order
    [2 (keys, values), layers, cached, kv_heads, head_dim], keys already rotated. Without it (None, `cached` 0) prompt
    and response are computed again; with it `cached` is all tokens but the last, which is fed next.
    """

    request: Request
    spans: tuple[Span, ...] = ()
    cached: int = 0
    cache: bytes | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The response so far."""
        return tuple(token for span in self.spans for token in span.token_ids)


class Generator(Protocol):
    """A rollout engine holding several versions. C1: a request is decoded by its own version or not at all, unless
    the caller gives that up with `switch`.
    """

    slots: int

    def load(self, version: int, weights: Path) -> None:
        """Take up a version's weights. Raises WeightsError where they are damaged or do not fit."""

    def unload(self, version: int) -> None:
        """Forget a version. Raises EngineError while a request still needs it."""

    def submit(self, request: Request) -> None:
        """Queue a request. Raises EngineError for an unknown version or a prompt that does not fit."""

    def abort(self, request_ids: Sequence[int]) -> None:
        """Forget these requests, running, queued or parked; unknown ids are ignored."""

    def detach(self, request_ids: Sequence[int], keep_cache: bool = True) -> list[Parcel]:
        """Take unfinished requests out, in this order, to go on elsewhere; unknown ids are ignored. Without
        `keep_cache` their keys and values are left behind. Whether one was suspended is not kept."""

    def attach(self, parcel: Parcel) -> None:
        """Go on with a request that was detached here or elsewhere; it comes before all that are queued. Raises
        EngineError for an unknown version, an id in use, and a cache or tokens that do not fit."""

    def suspend(self, request_ids: Sequence[int]) -> None:
        """Decode nothing of these requests until `switch` names them; unknown ids are ignored."""

    def switch(self, request_ids: Sequence[int], version: int, keep_cache: bool) -> None:
        """These requests go on under `version`, a new span each where tokens were sampled. `keep_cache`: over the keys
        and values computed so far; otherwise these are computed again. Raises EngineError for an unknown version.
        """

    def step(self) -> list[Completion]:
        """Decode one token of every running request, after moving parked and queued ones into free slots."""

    def decoded(self) -> dict[int, int]:
        """Tokens decoded so far of each unfinished request; those not begun count 0."""

    def sampled(self, request_id: int, start: int = 0) -> tuple[Span, ...]:
        """What an unfinished request has sampled from its token `start` on; empty where there is nothing (yet)."""

    def parked(self) -> tuple[int, ...]:
        """Requests put aside until there is room for their keys and values, oldest first."""

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values there is memory in use for, in whole blocks."""

    def score(self, version: int, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-probs [L] (temperature 1, no cut) of a response under a loaded version: the canary's measure."""


class Learner(Protocol):
    """The target policy and its optimizer."""

    version: int

    def step(self, batch: Batch) -> StepReport:
        """Train on one batch."""

    def publish(self, directory: Path) -> str:
        """Write weights and optimizer state as a new version; return the weights' SHA-256."""


class Task(Protocol):
    """A source of prompts and the reward of a response."""

    name: str

    def prompt(self, prompt_id: int) -> Prompt:
        """The prompt at a position of the endless training source; the same id gives the same prompt for ever."""

    def held_out(self, count: int) -> list[Prompt]:
        """A fixed set of prompts that training never draws."""

    def reward(self, prompt: Prompt, response: str) -> float:
        """Reward in [0, 1]; 1.0 means an exact match."""

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        """Raise TaskError unless the reward accepts gold answers and rejects wrong ones.

        `calling` is told of every call of the reward, prompt and response, before it is made; nothing slow follows the
        last one.
        """


class Agent(Protocol):
    """The policy as an episode sees it: an OpenAI-compatible endpoint that answers every turn by one version.

    Any client takes `base_url`, `api_key` and `model`; the key names the episode. A conversation only grows: each call
    begins with the messages of the call before and its answer.
    """

    base_url: str
    api_key: str
    model: str

    async def say(
        self, messages: Sequence[dict[str, str]], stop: Sequence[str] = (), max_tokens: int | None = None
    ) -> str:
        """The answer to a conversation, without the stop string that ended it. Raises OutOfRoom where no turn fits any
        more, EngineError where the policy cannot answer."""


class EpisodeTask(Task, Protocol):
    """A task of several turns. Its prompts' texts are what an episode begins with, as one user message, and a gold
    answer is the whole of what follows, as one text. Where it has `parts(prompt)`, a list of (text, whether the policy
    says it), a preset's warm start learns only what the policy says. Where it has
    `opening(prompt)`, (messages, tools) as chat templates take them, an episode begins with those instead."""

    async def episode(self, prompt: Prompt, agent: Agent) -> float:
        """Play one episode and return its reward in [0, 1]. It may await tools for as long as `run.lease_seconds`."""
