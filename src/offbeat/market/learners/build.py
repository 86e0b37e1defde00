"""From settings to a learner: the one place that knows every algorithm."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from offbeat.align.rule import AlignSettings
from offbeat.market.learners import algorithms
from offbeat.market.learners.ddpg import DDPG
from offbeat.market.learners.dqn import DQN
from offbeat.market.learners.learner import Learner
from offbeat.market.learners.observation import width
from offbeat.market.learners.ppo import PPO
from offbeat.market.learners.qlearning import QLearning
from offbeat.market.learners.sac import SAC
from offbeat.market.learners.settings import StudySettings
from offbeat.market.learners.td3 import TD3


def build(study: StudySettings, seeds: list[int], rate: NDArray[np.float64]) -> Learner:
    """An untrained learner for len(seeds) runs whose firms decide `rate` (R,) times in a unit of time."""
    learner = _chosen(study, seeds, rate)
    learner.align(AlignSettings(**study.align.model_dump()))
    return learner


def _chosen(study: StudySettings, seeds: list[int], rate: NDArray[np.float64]) -> Learner:
    firms, settings = study.learning, study.learner
    seen = study.demand.industry().firms
    agents = firms * len(seeds)
    rho = torch.full((agents,), study.market.rho) if settings.discount == "time" else None
    columns = width(seen, study.market.observe)
    if isinstance(settings, algorithms.DDPGSettings):
        speeds = study.market.speeds_of(seen)[:firms]
        wait = torch.from_numpy(np.concatenate([1.0 / (rate * speed) for speed in speeds]).astype(np.float32))
        return DDPG(seeds, firms, columns, settings, rho, wait)
    if isinstance(settings, algorithms.TD3Settings):
        return TD3(seeds, firms, columns, settings, rho)
    if isinstance(settings, algorithms.SACSettings):
        return SAC(seeds, firms, columns, settings, rho)
    if isinstance(settings, algorithms.DQNSettings):
        return DQN(seeds, firms, columns, settings, rho)
    if isinstance(settings, algorithms.PPOSettings):
        return PPO(seeds, firms, columns, settings, rho)
    return QLearning(seeds, firms, columns, settings, rho, seen)
