"""Settings of the algorithms, one section each, told apart by `algorithm`. Knows no tensor, so that bad input is
refused at once.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Span = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Hidden = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=1, max_length=8)]


class Section(BaseModel):
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Algorithm(Section):
    """What all have. `discount = "time"` weighs what follows by e^{-rho tau}, `"event"` by `gamma` however long it
    took.
    """

    discount: Literal["time", "event"] = "time"
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.95


class OffPolicy(Algorithm):
    """`batch` transitions an update, one update every so many rounds (`every`); `capacity` decisions remembered by an
    agent; `tau` of target networks.
    """

    hidden: Hidden = (64, 64)
    batch: Annotated[int, Field(ge=1, le=4096)] = 64
    every: Count = 1
    capacity: Annotated[int, Field(ge=2, le=10_000_000)] = 100_000
    tau: Rate = 0.005


class DDPGSettings(OffPolicy):
    """`memory` of the exploration noise in units of time, 0 for none."""

    algorithm: Literal["ddpg"] = "ddpg"
    actor_rate: Rate = 1e-4
    critic_rate: Rate = 1e-3
    memory: Span = 1.0
    critic: Literal["value", "advantage-rate"] = "value"


class TD3Settings(OffPolicy):
    """`smoothing` and `clip`: scale and bound of the noise on target actions, in half boxes; `delay` updates of
    critics to one of actors.
    """

    algorithm: Literal["td3"] = "td3"
    actor_rate: Rate = 1e-4
    critic_rate: Rate = 1e-3
    memory: Span = 1.0
    delay: Count = 2
    smoothing: Span = 0.2
    clip: Span = 0.5


class SACSettings(OffPolicy):
    """`actor_hidden`: the actor's layers where they are not the critics' (`hidden`); `entropy`: the entropy aimed at,
    nats; `reward_scale` multiplies profits (arXiv 1801.01290, 5.2): how much they
    weigh against entropy, and how large they are beside an optimizer's step; `average_reward` with `flow_rate`, the
    step size of the believed profit flow.
    """

    algorithm: Literal["sac"] = "sac"
    actor_hidden: Hidden | None = None
    actor_rate: Rate = 3e-4
    critic_rate: Rate = 1e-3
    temperature_rate: Rate = 1e-3
    entropy: Annotated[float, Field(allow_inf_nan=False)] = -1.0
    reward_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    average_reward: bool = False
    flow_rate: Rate = 0.01


class DQNSettings(OffPolicy):
    """`prices`: points of the grid over the box, its ends included."""

    algorithm: Literal["dqn"] = "dqn"
    rate: Rate = 1e-3
    prices: Annotated[int, Field(ge=2, le=1001)] = 15


class PPOSettings(Algorithm):
    """`horizon` updates are one: then `epochs` passes over all decisions since; `scale` initial standard deviation
    in half boxes.
    """

    algorithm: Literal["ppo"] = "ppo"
    hidden: Hidden = (64, 64)
    actor_rate: Rate = 3e-4
    critic_rate: Rate = 1e-3
    horizon: Annotated[int, Field(ge=2, le=100_000)] = 128
    epochs: Count = 10
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    scale: Annotated[float, Field(gt=0, le=10)] = 0.5
    entropy: Span = 0.0


class QLearningSettings(Algorithm):
    """`prices` points on the grid; `alpha` learning rate; `start` the initial value of every action, money."""

    algorithm: Literal["q-learning"] = "q-learning"
    prices: Annotated[int, Field(ge=2, le=101)] = 15
    alpha: Rate = 0.15
    start: Annotated[float, Field(allow_inf_nan=False)] = 0.0


LearnerSettings = Annotated[
    DDPGSettings | TD3Settings | SACSettings | DQNSettings | PPOSettings | QLearningSettings,
    Field(discriminator="algorithm"),
]
