"""The training loop: all runs of a batch side by side, event by event. *A round is n repricings of each run, then
one update of every agent (or every few rounds, as the learner is set).*

Equal rounds mean equal gradient steps for every run whatever its clock, so cells differ in the market and in
nothing else. Each window is an episode in a fresh market with a seed of its own; a batch at the end of a window is
therefore its learner, its replay and three numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.eventtime.streams import stream_seed
from offbeat.market.clocks import Index
from offbeat.market.course import rows_of
from offbeat.market.learners.algorithms import OffPolicy
from offbeat.market.learners.build import build
from offbeat.market.learners.observation import observation, price, width
from offbeat.market.learners.replay import Replay
from offbeat.market.learners.settings import StudySettings
from offbeat.market.market import Decision, Market
from offbeat.market.quotes import Latency
from offbeat.market.rules import rule

Array = NDArray[np.float64]
Said = Callable[[int], None]
"""Told the number of rounds done, every round."""
MEASURES = ("price", "profit", "quiet_price", "quiet_profit", "critic_max", "critic_loss", "noise")


class Training:
    """The runs `part` :: `parts` of a study, R of them; firm-major over A = n R agents."""

    def __init__(self, study: StudySettings, part: int) -> None:
        self.study, self.part = study, part
        self.benchmark = study.benchmark()
        self.box = study.box(self.benchmark)
        self.firms = self.benchmark.industry.firms
        self.runs = study.runs[part :: study.run.parts]
        cells = np.array(study.cells)[[cell for cell, _ in self.runs]]
        self.rate, self.latency = cells[:, 0].copy(), cells[:, 1].copy()
        self.rounds = study.rounds
        name = study.market.rival
        self.rule = None if name is None else rule(name, self.benchmark, self.box, study.run.seed)
        self.learner = build(study, [seed for _, seed in self.runs], self.rate)
        expected = self.rounds * study.run.windows
        spread = int(expected + 8 * expected**0.5 + 16)
        most = (
            study.learner.capacity
            if isinstance(study.learner, OffPolicy)
            else 4 * getattr(study.learner, "horizon", 1) + 64
        )
        self.replay = Replay(
            self.learner.agents,
            width(self.firms, study.market.observe),
            min(most, spread),
            self.learner.chance("replay"),
        )
        self.every = study.learner.every if isinstance(study.learner, OffPolicy) else 1  # rounds to an update
        self.window, self.time = 0, np.zeros(len(self.runs))
        self._share = 0.0  # of the present window, done
        self.trace: dict[str, list[Array]] = {name: [] for name in ("time", *MEASURES)}

    @property
    def over(self) -> bool:
        """Whether every window is done."""
        return self.window == self.study.run.windows

    def market(self, *purpose: str | int) -> Market:
        """A fresh market for all runs of this batch."""
        study, n, runs = self.study.market, self.firms, len(self.runs)
        average = getattr(self.study.learner, "average_reward", False)
        return Market(
            self.benchmark.industry,
            runs,
            study.make_clock(n, self.rate),
            latency=Latency(np.broadcast_to(self.latency, (n, n, runs)), study.latency_law),
            rho=0.0 if average else study.rho,
            box=self.box,
            seed=stream_seed(self.study.run.seed, "training", self.part, *purpose),
        )

    def noise(self, decision: Decision) -> Tensor:
        """Scale of exploration of each row."""
        e = self.study.exploration
        if e.half_life is None:
            share = (self.window + self._share) / self.study.run.windows / e.until
            scale = np.full(len(decision), e.start + (e.end - e.start) * min(1.0, share))
        else:
            age = self.time[decision.market] + decision.now
            scale = np.maximum(e.end, e.start * 0.5 ** (age / e.half_life))
        return torch.from_numpy(scale.astype(np.float32))

    def train_window(self, said: Said | None = None) -> None:
        """One window: train, measure, append to the trace."""
        market, learner, study = self.market("window", self.window), self.learner, self.study
        learner.fresh_measures()
        n, runs = self.firms, len(self.runs)
        sight = torch.zeros(learner.agents, width(n, study.market.observe))
        held, noise = np.zeros((n, runs)), np.zeros(self.rounds)
        decision = market.reset()
        opened = market.now.copy()
        for k in range(self.rounds):
            self._share = k / self.rounds
            warming = learner.warms_up and self.window * self.rounds + k < study.run.warmup
            for _ in range(1 if study.market.together else n):
                scale = self.noise(decision)
                prices = self._decide(decision, sight, scale, warming)
                before = market.now.copy()
                decision = market.step(prices)
                held += market.prices * (market.now - before)
            noise[k] = float(scale.mean())
            if not warming and (self.window * self.rounds + k) % self.every == 0:
                learner.learn(self.replay)
            if said is not None:
                said(self.window * self.rounds + k + 1)
        span = market.now - opened
        quiet = self._evaluate()
        critic = np.full((2, n, runs), np.nan)  # a firm that follows a rule has none
        critic[0, : study.learning] = learner.critic_max.reshape(-1, runs)
        critic[1, : study.learning] = (learner.critic_loss / learner.updates.clamp_min(1)).reshape(-1, runs)
        found = (held / span, market.earned / market.now, *quiet, *critic, np.full((n, runs), noise.mean()))
        self.trace["time"].append(span)
        for name, values in zip(MEASURES, found, strict=True):
            self.trace[name].append(values)
        self.time += market.now
        self.window += 1

    def _decide(self, decision: Decision, sight: Tensor, scale: Tensor, warming: bool) -> Array:
        """Record what learning firms see and have earned; prices of all who act (rows,)."""
        rows, prices = self._others(decision)
        if not len(rows):
            return prices
        learners = rows_of(decision, rows)
        agents = learners.firm * len(self.runs) + learners.market
        seen = observation(learners, self.box, self.study.market.observe)
        sight[torch.from_numpy(agents)] = seen
        profit, elapsed, first = (
            torch.from_numpy(x.astype(np.float32)) for x in (learners.profit, learners.elapsed, learners.first)
        )
        self.learner.witness(agents, seen, profit, elapsed, first)
        if warming:
            action = self.learner.roam(agents)
        else:
            action = self.learner.act(sight, agents, elapsed, first, scale[torch.from_numpy(rows)])
        columns = [seen, *(x.float()[:, None] for x in (action, profit, elapsed, first))]
        self.replay.add(agents, torch.cat(columns, 1))
        prices[rows] = price(action, self.box)
        return prices

    def _others(self, decision: Decision) -> tuple[Index, Array]:
        """Rows of learning firms, and prices (rows,) with those of firms that follow a rule filled in."""
        prices = np.empty(len(decision))
        if self.rule is None:
            return np.arange(len(decision)), prices
        learns = decision.firm < self.study.learning
        others = np.flatnonzero(~learns)
        if len(others):
            prices[others] = self.rule(rows_of(decision, others))
        return np.flatnonzero(learns), prices

    def _evaluate(self) -> tuple[Array, Array]:
        """Mean price and profit flow (n, R) of the noise-free policies, over the second half of a fresh episode."""
        n, runs, rounds = self.firms, len(self.runs), self.study.run.evaluate
        if not rounds:
            return np.full((n, runs), np.nan), np.full((n, runs), np.nan)
        market = self.market("evaluate", self.window)
        sight = torch.zeros(self.learner.agents, width(n, self.study.market.observe))
        decision = market.reset()
        events = rounds * (1 if self.study.market.together else n)
        held = np.zeros((n, runs))
        for event in range(events):
            if event == events // 2:
                earned, since = market.earned.copy(), market.now.copy()
                held[:] = 0.0
            rows, prices = self._others(decision)
            if len(rows):
                learners = rows_of(decision, rows)
                at = torch.from_numpy(learners.firm * runs + learners.market)
                sight[at] = observation(learners, self.box, self.study.market.observe)
                prices[rows] = price(self.learner.quiet(sight[:, None])[at, 0], self.box)
            before = market.now.copy()
            decision = market.step(prices)
            held += market.prices * (market.now - before)
        span = market.now - since
        return held / span, (market.earned - earned) / span
