"""PettingZoo AEC: the agent selected is the owner of the next tick; firms that tick together choose in turn, unseen by
one another.

Observation (2n,): seen prices (own first), then their ages; action: a price in a Box of shape (1,). Reward: the exact
discounted profit since the agent's previous decision, e^{-rho elapsed} is in `infos` as `discount`. The horizon
truncates all agents at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from pettingzoo import AECEnv

from offbeat.eventtime.streams import stream_seed
from offbeat.market.scenario import Scenario
from offbeat.market.views.episode import Episode


class PricingAEC(AECEnv):  # type: ignore[misc]
    """One market of `scenario`; a seed given to `reset` fixes the episodes that follow."""

    metadata = {"name": "offbeat_pricing_v0", "render_modes": ["ansi"], "is_parallelizable": False}

    def __init__(self, scenario: Scenario | None = None, render_mode: str | None = None) -> None:
        self.scenario = scenario or Scenario()
        self.render_mode = render_mode
        n = self.scenario.industry.firms
        self.possible_agents = [f"firm_{i}" for i in range(n)]
        self.observation_spaces, self.action_spaces = spaces(self.scenario, self.possible_agents)
        self._seed, self._episodes = 0, 0

    def observation_space(self, agent: str) -> Space[Any]:
        """Seen prices and ages (2n,)."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """A price (1,)."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode."""
        del options
        if seed is not None:
            self._seed, self._episodes = seed, 0
        self._episode = Episode(self.scenario, stream_seed(self._seed, "episode", self._episodes))
        self._episodes += 1
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._chosen: dict[int, float] = {}
        self._tell()

    def observe(self, agent: str) -> np.ndarray:
        """What the agent knew at its last decision, which is the present one where it is selected."""
        return np.asarray(self._episode.known[self.possible_agents.index(agent)], dtype=np.float32)

    def step(self, action: Any) -> None:
        """Price of the selected agent."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        firm = self.possible_agents.index(agent)
        self._chosen[firm] = price_in(action, self.scenario.box)
        if len(self._chosen) == len(self._episode.acting):
            self._episode.post(self._chosen)
            self._chosen = {}
            for i, name in enumerate(self.possible_agents):
                self.rewards[name] = float(self._episode.paid[i])
            if self._episode.over:
                self.truncations = dict.fromkeys(self.agents, True)
        self._tell()
        self._accumulate_rewards()

    def render(self) -> str | None:
        """Prices in force, as a line."""
        return line(self._episode) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Nothing to close."""

    def _tell(self) -> None:
        left = [i for i in self._episode.acting if i not in self._chosen]
        self.agent_selection = self.possible_agents[left[0]] if left else self.possible_agents[0]
        self.infos = {
            name: told(self._episode, i, self.scenario.rho)
            for i, name in enumerate(self.possible_agents)
            if name in self.agents
        }


def spaces(scenario: Scenario, agents: list[str]) -> tuple[dict[str, Space[Any]], dict[str, Space[Any]]]:
    """Observation and action spaces by agent."""
    n, (low, high) = len(agents), scenario.box
    oldest = np.nextafter(np.float32(scenario.horizon), np.float32(np.inf))
    bottom = np.array([low] * n + [0] * n, dtype=np.float32)
    top = np.array([high] * n + [oldest] * n, dtype=np.float32)
    observations: dict[str, Space[Any]] = {agent: Box(bottom, top, dtype=np.float32) for agent in agents}
    actions: dict[str, Space[Any]] = {
        agent: Box(np.float32(low), np.float32(high), (1,), dtype=np.float32) for agent in agents
    }
    return observations, actions


def price_in(action: Any, box: tuple[float, float]) -> float:
    """The price an action says, clipped to the box as action spaces promise; NaN stays and is refused by the market."""
    return float(np.clip(np.asarray(action, dtype=np.float64).reshape(-1)[0], *box))


def told(episode: Episode, firm: int, rho: float) -> dict[str, Any]:
    """The info of an agent."""
    info = episode.info(firm)
    return info | {"discount": float(np.exp(-rho * info["elapsed"]))}


def line(episode: Episode) -> str:
    """The market as a line of text."""
    info = episode.info(0)
    return f"t = {info['time']:.3f}: " + ", ".join(f"{price:.4f}" for price in info["prices"])
