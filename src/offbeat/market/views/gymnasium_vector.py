"""Gymnasium vector view: one firm learns in many markets at once against rivals whose policies are fixed.

A step is the time from one decision of the learner to its next: rivals' ticks in between are played inside, and a
market whose learner is to move waits for the others. An episode is truncated at the horizon, paid up to it; the step
after that starts the next (next-step autoreset, as Gymnasium's default), and its action is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from offbeat.errors import SettingsError
from offbeat.market.clocks import Mask
from offbeat.market.course import proposals, rows_of
from offbeat.market.demand import Array
from offbeat.market.market import Decision, Market
from offbeat.market.rules import Policy
from offbeat.market.scenario import Scenario
from offbeat.market.views.pettingzoo_aec import spaces


class PricingVector(VectorEnv):
    """`num_envs` markets of `scenario` in which `firm` learns and `rivals` (one policy for each other firm, in order)
    play.

    Observation (num_envs, 2n), action (num_envs, 1), reward: exact discounted profit since the learner's previous
    decision; infos: `elapsed`, `discount` e^{-rho elapsed} and `time` (num_envs,).
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, scenario: Scenario, rivals: Sequence[Policy], num_envs: int = 64, firm: int = 0) -> None:
        n = scenario.industry.firms
        if not 0 <= firm < n or len(rivals) != n - 1:
            raise SettingsError(
                f"rivals: {len(rivals)} policies beside firm {firm} of {n}; give one for each other firm"
            )
        self.scenario, self.firm, self.num_envs = scenario, firm, num_envs
        self._policies = [*rivals[:firm], _nobody, *rivals[firm:]]
        observations, actions = spaces(scenario, ["learner"] * n)
        self.single_observation_space, self.single_action_space = observations["learner"], actions["learner"]
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._market: Market | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start all episodes. One seed fixes the course of the whole batch; a list of seeds cannot be honoured one by
        one.
        """
        del options
        if isinstance(seed, list):
            raise SettingsError("seed: the markets of a batch share their random streams; give one number")
        if seed is not None or self._market is None:
            self._market = self.scenario.open(self.num_envs, seed or 0, horizon=self.scenario.horizon)
        self._over = np.zeros(self.num_envs, dtype=bool)
        self._known, self._last = np.zeros((self.num_envs, 2 * self.scenario.industry.firms)), np.zeros(self.num_envs)
        self._decision = self._market.reset()
        self._to_the_learner()
        return self._tell()

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Post the learner's prices and play on to its next decision in every market."""
        if self._market is None:
            raise SettingsError("step: call reset() first")
        again, market = self._over, self._market
        chosen = np.clip(np.asarray(actions, dtype=np.float64).reshape(self.num_envs), *self.scenario.box)
        self._decision = self._move(chosen, ~again)
        if again.any():
            self._decision = market.restart(again)
        self._to_the_learner()
        row, first = self._row, self._decision.first[self._row]
        rewards = np.where(first | again, 0.0, self._decision.profit[row])
        over = self._over
        rewards = np.where(over & ~again, np.nan_to_num(market.closing[self.firm]), rewards)
        observations, infos = self._tell()
        return observations, rewards, np.zeros_like(over), over.copy(), infos

    def _to_the_learner(self) -> None:
        """Play rivals' ticks until the learner acts, or the horizon is passed, in every market."""
        market = self._market
        assert market is not None
        while True:
            decision = self._decision
            mine = np.zeros(self.num_envs, dtype=bool)
            mine[decision.market[decision.firm == self.firm]] = True
            self._over = market.now >= self.scenario.horizon
            if (mine | self._over).all():
                break
            self._decision = self._move(None, ~(mine | self._over))
        self._row = np.zeros(self.num_envs, dtype=np.intp)
        self._row[decision.market] = np.arange(len(decision))
        rows = np.flatnonzero(decision.firm == self.firm)
        self._row[decision.market[rows]] = rows

    def _move(self, chosen: Array | None, moving: Mask) -> Decision:
        """Step the markets `moving` (M,): rivals' policies are asked, the learner's price is `chosen` (M,)."""
        decision, market = self._decision, self._market
        assert market is not None
        rows = np.flatnonzero(moving[decision.market])
        asked = np.full(len(decision), self.scenario.box[0])
        asked[rows] = proposals(self._policies, rows_of(decision, rows))
        if chosen is not None:
            asked = np.where(decision.firm == self.firm, chosen[decision.market], asked)
        return market.step(asked, moving)

    def _tell(self) -> tuple[Array, dict[str, Any]]:
        """Observation and infos. At the horizon the learner knows what it knew at its last decision, so much older."""
        market = self._market
        assert market is not None
        decision, row, n = self._decision, self._row, self.scenario.industry.firms
        time = np.minimum(market.now, self.scenario.horizon)
        fresh = np.concatenate([decision.seen[row], decision.age[row]], axis=1)
        waited = time - self._last
        old = self._known.copy()
        old[:, n:] += waited[:, None]
        known = np.where(self._over[:, None], old, fresh)
        elapsed = np.where(self._over, waited, decision.elapsed[row])
        self._known, self._last = known, time
        discount = np.exp(-self.scenario.rho * elapsed)
        return known.astype(np.float32), {"elapsed": elapsed, "discount": discount, "time": time}


def _nobody(decision: Decision) -> Array:
    """In the learner's place where the market waits for it: its rows do not move."""
    return decision.seen[:, 0]
