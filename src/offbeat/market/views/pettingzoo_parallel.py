"""PettingZoo Parallel: one step per event, with an action mask that says who may reprice and who can only hold.

Actions are a grid of `points` prices over the box, and one more, `hold`. At an event the owner of the tick may choose
any of them; everybody else can only hold, and an action against the mask has no effect.
Observation: {"observation": (2n,) seen prices and ages at the firm's last decision, "action_mask": (points + 1,)}.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from pettingzoo import ParallelEnv

from offbeat.errors import SettingsError
from offbeat.eventtime.streams import stream_seed
from offbeat.market.scenario import Scenario
from offbeat.market.views.episode import Episode
from offbeat.market.views.pettingzoo_aec import line, spaces, told


class PricingParallel(ParallelEnv):  # type: ignore[misc]
    """One market of `scenario`; a seed given to `reset` fixes the episodes that follow."""

    metadata = {"name": "offbeat_pricing_v0", "render_modes": ["ansi"]}

    def __init__(self, scenario: Scenario | None = None, points: int = 15, render_mode: str | None = None) -> None:
        if points < 2:
            raise SettingsError(f"points: {points}; a price grid has at least 2")
        self.scenario = scenario or Scenario()
        self.render_mode = render_mode
        n = self.scenario.industry.firms
        self.grid = np.linspace(*self.scenario.box, points)
        self.hold = points
        self.possible_agents = [f"firm_{i}" for i in range(n)]
        seen, _ = spaces(self.scenario, self.possible_agents)
        mask = {agent: Box(0, 1, (points + 1,), dtype=np.int8) for agent in self.possible_agents}
        self.observation_spaces = {
            agent: Dict({"observation": seen[agent], "action_mask": mask[agent]}) for agent in self.possible_agents
        }
        self.action_spaces = {agent: Discrete(points + 1) for agent in self.possible_agents}
        self.agents: list[str] = []
        self._seed, self._episodes = 0, 0

    def observation_space(self, agent: str) -> Space[Any]:
        """Seen prices and ages, and the action mask."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """Grid index, or hold."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode: (observations, infos)."""
        del options
        if seed is not None:
            self._seed, self._episodes = seed, 0
        self._episode = Episode(self.scenario, stream_seed(self._seed, "episode", self._episodes))
        self._episodes += 1
        self.agents = self.possible_agents[:]
        return self._observations(), self._infos()

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """One event. Actions against the mask have no effect; a firm that may act and holds posts its price again."""
        self._episode.post({i: self._price(i, int(actions[self.possible_agents[i]])) for i in self._episode.acting})
        rewards = {name: float(self._episode.paid[i]) for i, name in enumerate(self.possible_agents)}
        over = self._episode.over
        found = self._observations(), rewards, dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, over)
        infos = self._infos()
        if over:
            self.agents = []
        return *found, infos

    def render(self) -> str | None:
        """Prices in force, as a line."""
        return line(self._episode) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Nothing to close."""

    def _observations(self) -> dict[str, Any]:
        return {
            name: {"observation": self._episode.known[i].astype(np.float32), "action_mask": self._mask(i)}
            for i, name in enumerate(self.possible_agents)
        }

    def _price(self, firm: int, action: int) -> float:
        return float(self._episode.known[firm, 0] if action == self.hold else self.grid[action])

    def _mask(self, firm: int) -> np.ndarray:
        mask = np.full(self.hold + 1, firm in self._episode.acting, dtype=np.int8)
        mask[self.hold] = 1
        return mask

    def _infos(self) -> dict[str, Any]:
        return {name: told(self._episode, i, self.scenario.rho) for i, name in enumerate(self.possible_agents)}
