"""Sessions of Q-learning in the repeated pricing game: Calvano, Calzolari, Denicolò and Pastorello, AER 110(10)
2020.

Many sessions play side by side on all cores, each with its own seed, until no greedy action has changed for
`stable` periods. `Sessions` holds everything there is to know of them: written to disk and read back, it goes on as
if nothing had happened. It knows nothing of continuous time; what the learnt strategies amount to is in
`strategies`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.eventtime.streams import stream_seed
from offbeat.market.industry import Industry

Array = NDArray[np.float64]
CHUNK = 100_000
"""Periods a session plays between two reports of progress."""


@dataclass(frozen=True)
class PriceGame:
    """A stage game on a price grid: `prices` (m,), `profits` (n, m^n) by joint action, the first firm's action most
    significant.
    """

    prices: Array
    profits: Array

    @classmethod
    def on_grid(cls, industry: Industry, prices: Array) -> PriceGame:
        """The industry's profit flow at every combination of grid prices, firms' costs and demand as they are."""
        joint = np.stack(np.meshgrid(*[prices] * industry.firms, indexing="ij")).reshape(industry.firms, -1)
        return cls(np.asarray(prices, dtype=np.float64), industry.flow(joint))

    @property
    def firms(self) -> int:
        return len(self.profits)

    @property
    def actions(self) -> int:
        return len(self.prices)


def price_grid(nash: float, cartel: float, actions: int = 15, xi: float = 0.1) -> Array:
    """Calvano's grid: `actions` equally spaced prices on [nash - xi (cartel - nash), cartel + xi (cartel - nash)]."""
    margin = xi * (cartel - nash)
    return np.linspace(nash - margin, cartel + margin, actions)


@dataclass(frozen=True)
class SessionSettings:
    """Calvano's representative experiment. `alpha` learning rate, `beta` decay of exploration: epsilon_t = e^{-beta
    t}.
    """

    alpha: float = 0.15
    beta: float = 4e-6
    discount: float = 0.95
    memory: int = 1
    counterfactual: bool = False
    stable: int = 100_000
    most_periods: int = 1_250_000_000

    def __post_init__(self) -> None:
        for name, value, low, high in (("alpha", self.alpha, 0, 1), ("discount", self.discount, 0, 1)):
            if not low <= value <= high:
                raise SettingsError(f"{name}: {value} must lie between {low} and {high}")
        if not self.beta > 0:
            raise SettingsError(f"beta: {self.beta} must be above 0, or exploration never ends")
        if self.memory not in (0, 1):
            raise SettingsError(f"memory: {self.memory} periods; this learner remembers 0 or 1")
        if self.stable < 1 or self.most_periods < self.stable:
            raise SettingsError(
                f"most_periods: {self.most_periods} must be at least stable = {self.stable}, and that at least 1"
            )


class Sessions:
    """`q` (K, n, states, m), `best` and `greedy` (K, n, states), `count` (K, 3): state, periods, periods without
    change.
    """

    def __init__(self, game: PriceGame, settings: SessionSettings, seeds: list[int]) -> None:
        if settings.discount == 1:
            raise SettingsError("discount: 1 leaves the values of the repeated game infinite; take one below 1")
        self.game, self.settings, self.seeds = game, settings, list(seeds)
        firms, actions = game.firms, game.actions
        states = actions**firms if settings.memory else 1
        table = game.profits.reshape(firms, *[actions] * firms)
        start = np.stack([table[i].mean(axis=tuple(k for k in range(firms) if k != i)) for i in range(firms)])
        start /= 1 - settings.discount  # Calvano: rivals uniform for ever
        shape = (len(seeds), firms, states, actions)
        self.q = np.broadcast_to(start[None, :, None, :], shape).copy()
        self.best, self.greedy = self.q.max(axis=-1), self.q.argmax(axis=-1)
        self.word = np.array([stream_seed(seed, "session") for seed in seeds], dtype=np.uint64)
        self.epsilon = np.ones(len(seeds))
        self.count = np.zeros((len(seeds), 3), dtype=np.int64)
        first = [np.random.default_rng(stream_seed(seed, "session", "start")).integers(states) for seed in seeds]
        self.count[:, 0] = first

    @property
    def converged(self) -> NDArray[np.bool_]:
        """(K,) whether greedy actions have stood still long enough."""
        return self.count[:, 2] >= self.settings.stable

    @property
    def over(self) -> bool:
        """Whether every session has converged or played all it may."""
        return bool((self.converged | (self.count[:, 1] >= self.settings.most_periods)).all())

    def advance(self, periods: int = CHUNK, threads: int | None = None) -> None:
        """Let every session that is not over play `periods` more."""
        from offbeat.market.learners.sessions_kernel import play

        live = np.flatnonzero(~self.converged & (self.count[:, 1] < self.settings.most_periods))
        # contiguous runs of live sessions, so that each call works on views
        cuts = [block for block in np.split(live, np.flatnonzero(np.diff(live) > 1) + 1) if len(block)]
        workers = threads or len(os.sched_getaffinity(0))
        size = max(1, -(-len(live) // (4 * workers)))
        parts = [slice(int(b[i]), int(b[min(i + size, len(b)) - 1]) + 1) for b in cuts for i in range(0, len(b), size)]
        s = self.settings

        def run(rows: slice) -> None:
            play(
                periods,
                self.game.profits,
                self.q[rows],
                self.best[rows],
                self.greedy[rows],
                self.count[rows],
                self.word[rows],
                self.epsilon[rows],
                s.alpha,
                s.discount,
                float(np.exp(-s.beta)),
                s.memory,
                s.counterfactual,
                s.stable,
            )

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, parts))

    def play_out(self, said: Callable[[int, int], None] | None = None, threads: int | None = None) -> None:
        """Go on until every session is over; `said(sessions over, periods played by the longest)` after every chunk."""
        while not self.over:
            self.advance(CHUNK, threads)
            if said is not None:
                said(int(self.converged.sum()), int(self.count[:, 1].max()))

    def save(self, file: Path) -> None:
        """Write everything that changes, whole or not at all."""
        fresh = file.with_suffix(".part")
        with fresh.open("wb") as out:
            np.savez(out, **{name: getattr(self, name) for name in _STATE}, seeds=np.array(self.seeds))
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)

    def load(self, file: Path) -> None:
        """Go on from what `save` wrote; RunDirectoryError where it belongs to other sessions."""
        try:
            with np.load(file, allow_pickle=False) as saved:
                found = {name: saved[name] for name in (*_STATE, "seeds")}
        except (OSError, ValueError, KeyError) as error:
            raise RunDirectoryError(
                f"{file}: cannot be read as saved sessions ({error}); remove it to begin anew"
            ) from None
        if found["seeds"].tolist() != self.seeds or any(
            found[name].shape != getattr(self, name).shape for name in _STATE
        ):
            raise RunDirectoryError(f"{file}: holds other sessions than these; remove it or choose another directory")
        for name in _STATE:
            setattr(self, name, found[name])


_STATE = ("q", "best", "greedy", "word", "epsilon", "count")
