"""Service times: what each piece of work costs, as small formulas over sizes. Seconds, bytes, tokens, accelerators.

Each class is a section of a cluster file and its own formula; `calibrate` fits those for which a run log has data.
Nothing here is random and nothing knows lanes, versions or events.
"""

from __future__ import annotations

import heapq
from math import log, sqrt
from typing import Annotated, Literal

from pydantic import Field

from offbeat.task_settings import Section

NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Rate = Annotated[float, Field(ge=1e-9, le=1e15)]
"""What lies beyond is a slip of the keyboard, and its times would run out of floating point."""


class Decode(Section):
    """Seconds of one decode step of a lane with b running responses and C tokens of keys and values in all:

        floor_seconds + per_sequence_seconds * max(0, b - knee) + per_context_token_seconds * C

    The floor is reading the weights (memory-bound); beyond `knee` each response adds its share of arithmetic
    (saturation); the last term is reading keys and values. Every running response gains one token a step.
    """

    floor_seconds: Rate
    per_sequence_seconds: NotNegative = 0.0
    knee: NotNegative = 0.0
    per_context_token_seconds: NotNegative = 0.0

    def step(self, running: int, context: float) -> float:
        return self.base(running) + self.per_context_token_seconds * context

    def base(self, running: int) -> float:
        """The part of a step that does not change while the same responses run."""
        return self.floor_seconds + self.per_sequence_seconds * max(0.0, running - self.knee)


def seconds_for(steps: float, base: float, context: float, running: int, slope: float) -> float:
    """Time for `steps` decode steps from `context` tokens on, which grow by `running` a step:
    base x + slope (context x + running x^2 / 2), x = steps."""
    return steps * (base + slope * (context + running * steps / 2))


def steps_within(seconds: float, base: float, context: float, running: int, slope: float) -> float:
    """Inverse of `seconds_for`: the decode steps, with their fraction, done within `seconds`."""
    first = base + slope * context
    if not slope:
        return seconds / first
    return 2 * seconds / (first + sqrt(first * first + 2 * slope * running * seconds))


class Prefill(Section):
    """Computing keys and values of tokens that are there already: a lane does nothing else meanwhile.

    `tokens_per_second` is that of one accelerator; a group's prompt is computed once on its lane.
    """

    tokens_per_second: Rate = 10_000.0

    def seconds(self, tokens: float, accelerators: int) -> float:
        return tokens / (self.tokens_per_second * accelerators)


class Training(Section):
    """RL iteration i (1, 2, ...) on N accelerators, C tokens in its batch:

        T(N) = fixed + (work + (per_token_work + per_signal_token_work * signal(i)) * C) / N

    Work is in accelerator-seconds. Two measured N give fixed and work; different batches give the token terms.
    Signal is the share of groups whose rewards differ: others are measured only, without a backward pass. As a policy
    learns it falls with the logarithm of the iteration: signal(i) = signal_share + signal_per_log_iteration * log(i).
    """

    fixed_seconds: NotNegative = 0.0
    work: NotNegative = 0.0
    per_token_work: NotNegative = 0.0
    per_signal_token_work: NotNegative = 0.0
    signal_share: float = Field(1.0, ge=-100, le=100)
    signal_per_log_iteration: float = Field(0.0, ge=-100, le=100)

    def seconds(self, accelerators: int, tokens: float, iteration: int) -> float:
        return self.seconds_at(accelerators, tokens, self.signal(iteration))

    def seconds_at(self, accelerators: int, tokens: float, signal: float) -> float:
        """With a known share of groups whose rewards differ."""
        per_token = self.per_token_work + self.per_signal_token_work * signal
        return self.fixed_seconds + (self.work + per_token * tokens) / accelerators

    def signal(self, iteration: int) -> float:
        return min(1.0, max(0.0, self.signal_share + self.signal_per_log_iteration * log(iteration)))


class Publish(Section):
    """How a version's weights reach lanes. `gigabytes` are those of one copy, for a whole lane.

    broadcast: one collective to all who asked before it began; who asks during one waits for the next.
    peer: a lane takes them from whoever has them and is free, the learner first, so holders double with every transfer.
    relay: the learner hands them to workers in host memory (`gigabytes / gigabytes_per_second`, once, beside everything
    else), from which a lane fetches them at any time over its own bus (`bus_gigabytes_per_second`).
    """

    kind: Literal["broadcast", "peer", "relay"] = "peer"
    gigabytes: NotNegative = 0.0
    gigabytes_per_second: Rate = 50.0
    bus_gigabytes_per_second: Rate = 50.0
    setup_seconds: NotNegative = 0.0

    @property
    def transfer_seconds(self) -> float:
        return self.setup_seconds + self.gigabytes / self.gigabytes_per_second

    def deliveries(self) -> Deliveries:
        return {"broadcast": Broadcast, "peer": Peer, "relay": Relay}[self.kind](self)


class Deliveries:
    """The state of one version's way to the lanes."""

    def __init__(self, publish: Publish) -> None:
        self.publish = publish

    def arrival(self, now: float, published: float) -> float:
        """When a lane that asks now, for weights published then, has them."""
        raise NotImplementedError


class Broadcast(Deliveries):
    def __init__(self, publish: Publish) -> None:
        super().__init__(publish)
        self._began = self._ends = float("-inf")

    def arrival(self, now: float, published: float) -> float:
        if now > self._began:
            self._began = max(now, self._ends)
            self._ends = self._began + self.publish.transfer_seconds
        return self._ends


class Peer(Deliveries):
    def __init__(self, publish: Publish) -> None:
        super().__init__(publish)
        self._free = [0.0]

    def arrival(self, now: float, published: float) -> float:
        end = max(now, self._free[0]) + self.publish.transfer_seconds
        heapq.heapreplace(self._free, end)
        heapq.heappush(self._free, end)
        return end


class Relay(Deliveries):
    def arrival(self, now: float, published: float) -> float:
        fetch = self.publish.gigabytes / self.publish.bus_gigabytes_per_second
        return max(now, published + self.publish.transfer_seconds) + fetch


class Transfer(Section):
    """Moving keys and values between lanes: setup + tokens * bytes / bandwidth, beside the decoding of both."""

    bytes_per_token: NotNegative = 0.0
    gigabytes_per_second: Rate = 50.0
    setup_seconds: NotNegative = 0.0

    def seconds(self, tokens: float) -> float:
        return self.setup_seconds + self.bytes(tokens) / (1e9 * self.gigabytes_per_second)

    def bytes(self, tokens: float) -> float:
        return tokens * self.bytes_per_token


class Scoring(Section):
    """Reward of one response: `seconds` after it ended, any number at a time."""

    seconds: NotNegative = 0.0


class Tools(Section):
    """An agentic task: a response is `turns` stretches of tokens of equal length with a wait for an environment between
    them, each exponential with mean `seconds`, times a factor of the environment itself: lognormal, sigma `skew`.

    A response that waits keeps its slot and decodes nothing; its keys and values lie in host memory meanwhile.
    """

    turns: int = Field(1, ge=1, le=1000)
    seconds: NotNegative = 0.0
    skew: NotNegative = 0.0


class Faults(Section):
    """What fails and how often, in exponential times; all off by default.

    A lane fails once in `lane_hours` of its life and is back `return_seconds` after it was started again; likewise the
    learner. `slow_share` of all lanes are stragglers: everything there takes `slow_factor` times as long.
    """

    lane_hours: Rate | None = None
    learner_hours: Rate | None = None
    return_seconds: NotNegative = 60.0
    score_failures: float = Field(0.0, ge=0, lt=1)
    slow_share: float = Field(0.0, ge=0, le=1)
    slow_factor: float = Field(1.0, ge=1)
