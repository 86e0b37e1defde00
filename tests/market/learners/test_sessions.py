"""Sessions of the repeated game against an oracle that is the paper's algorithm in plain Python integers and dicts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.eventtime.streams import stream_seed
from offbeat.market.industry import calvano
from offbeat.market.learners.sessions import PriceGame, Sessions, SessionSettings, price_grid
from offbeat.market.learners.sessions_kernel import play_in_turn

WORD = 2**64


class Stream:
    """splitmix64, from its definition."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def uniform(self) -> float:
        self.state = (self.state + 0x9E3779B97F4A7C15) % WORD
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
        return ((z ^ (z >> 31)) >> 11) / 2**53


def game(firms: int = 2, actions: int = 4) -> PriceGame:
    return PriceGame.on_grid(calvano(firms), price_grid(1.472927, 1.924981, actions))


def played_by_hand(game: PriceGame, settings: SessionSettings, seed: int, periods: int) -> tuple[list, list, int, int]:
    """Q tables, greedy tables, state, periods without change."""
    n, m, delta = game.firms, game.actions, settings.discount
    states = m**n if settings.memory else 1

    def joint(actions: list[int]) -> int:
        index = 0
        for action in actions:
            index = index * m + action
        return index

    def digits(index: int) -> list[int]:
        found = []
        for _ in range(n):
            index, last = divmod(index, m)
            found.append(last)
        return found[::-1]

    q = []
    for i in range(n):
        by_action = [np.mean([game.profits[i][s] for s in range(m**n) if digits(s)[i] == a]) for a in range(m)]
        q.append([[value / (1 - delta) for value in by_action] for _ in range(states)])
    greedy = [[row.index(max(row)) for row in table] for table in q]
    stream = Stream(stream_seed(seed, "session"))
    state = int(np.random.default_rng(stream_seed(seed, "session", "start")).integers(states))
    epsilon, still = 1.0, 0
    for _ in range(periods):
        actions = []
        for i in range(n):
            action = greedy[i][state]
            if stream.uniform() < epsilon:
                action = int(stream.uniform() * m)
            actions.append(action)
        changed = False
        for i in range(n):
            was = greedy[i][state]
            flat = max(q[i][0])
            for a in range(m) if settings.counterfactual else [actions[i]]:
                would = joint([*actions[:i], a, *actions[i + 1 :]])
                onward = max(q[i][would]) if settings.memory else flat
                target = game.profits[i][would] + delta * onward
                q[i][state][a] += settings.alpha * (target - q[i][state][a])
                row = q[i][state]
                if row[a] > row[greedy[i][state]] or row[greedy[i][state]] < max(row):
                    greedy[i][state] = row.index(max(row))
            changed = changed or greedy[i][state] != was
        still = 0 if changed else still + 1
        epsilon *= math.exp(-settings.beta)
        state = joint(actions) if settings.memory else 0
    return q, greedy, state, still


@pytest.mark.parametrize("firms", [2, 3])
@pytest.mark.parametrize("memory", [0, 1])
@pytest.mark.parametrize("counterfactual", [False, True])
def test_a_session_is_the_published_algorithm(firms: int, memory: int, counterfactual: bool) -> None:
    settings = SessionSettings(beta=2e-3, memory=memory, counterfactual=counterfactual)
    sessions = Sessions(game(firms), settings, [5, 17])
    sessions.advance(1500)
    for k, seed in enumerate([5, 17]):
        q, greedy, state, still = played_by_hand(game(firms), settings, seed, 1500)
        np.testing.assert_allclose(sessions.q[k], q, rtol=1e-12)
        np.testing.assert_array_equal(sessions.greedy[k], greedy)
        assert sessions.count[k].tolist() == [state, 1500, still]


def test_a_session_does_not_depend_on_its_company_or_on_interruptions(tmp_path) -> None:
    settings = SessionSettings(beta=1e-3, stable=2000)
    together = Sessions(game(), settings, [0, 1, 2, 3])
    together.play_out(threads=2)
    alone = Sessions(game(), settings, [2])
    alone.advance(700)
    alone.save(tmp_path / "s.npz")
    resumed = Sessions(game(), settings, [2])
    resumed.load(tmp_path / "s.npz")
    resumed.play_out(threads=1)
    assert together.converged.all()
    np.testing.assert_array_equal(resumed.q[0], together.q[2])
    np.testing.assert_array_equal(resumed.count[0], together.count[2])
    with pytest.raises(RunDirectoryError, match="other sessions"):
        Sessions(game(), settings, [3]).load(tmp_path / "s.npz")
    (tmp_path / "s.npz").write_bytes(b"no")
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        resumed.load(tmp_path / "s.npz")


def test_convergence_counts_periods_in_which_no_greedy_action_changed() -> None:
    sessions = Sessions(game(), SessionSettings(beta=0.05, stable=300), [1])
    sessions.advance(50_000)
    assert sessions.over
    before = sessions.count.copy()
    sessions.advance(50_000)
    np.testing.assert_array_equal(sessions.count, before)


def test_turns_are_kleins_target() -> None:
    """Q moves towards profit(p, s) + delta profit(p, s') + delta^2 max Q(s')."""
    m, alpha, delta, decay = 3, 0.3, 0.95, 0.99
    prices = np.arange(m) / m
    cheapest = prices[:, None] < prices[None, :]
    profit = (
        np.where(cheapest, 1.0, np.where(prices[:, None] == prices[None, :], 0.5, 0.0))
        * (prices * (1 - prices))[:, None]
    )
    profits = np.stack([profit, profit])
    q, best, greedy = np.zeros((1, 2, m, m)), np.zeros((1, 2, m)), np.zeros((1, 2, m), dtype=np.int64)
    count, word, epsilon = np.array([[0, 1, 2, -1, -1]]), np.array([9], dtype=np.uint64), np.ones(1)
    play_in_turn(400, profits, q, best, greedy, count, word, epsilon, alpha, delta, decay)

    table = [[[0.0] * m for _ in range(m)] for _ in range(2)]
    stream, shown, saw, chance = Stream(9), [1, 2], [None, None], 1.0
    for t in range(400):
        i = t % 2
        rival = shown[1 - i]
        if saw[i] is not None:
            row = table[i][saw[i]]
            target = profit[shown[i]][saw[i]] + delta * profit[shown[i]][rival] + delta**2 * max(table[i][rival])
            row[shown[i]] += alpha * (target - row[shown[i]])
        action = table[i][rival].index(max(table[i][rival]))
        if stream.uniform() < chance:
            action = int(stream.uniform() * m)
        shown[i], saw[i] = action, rival
        chance *= decay
    np.testing.assert_allclose(q[0], table, rtol=1e-12)
    assert count[0, 1:3].tolist() == shown


@pytest.mark.parametrize(
    "wrong", [{"alpha": 1.5}, {"discount": -1}, {"beta": 0.0}, {"memory": 2}, {"stable": 0}, {"most_periods": 5}]
)
def test_impossible_settings_are_one_line(wrong) -> None:
    with pytest.raises(SettingsError) as caught:
        SessionSettings(**wrong)
    assert "\n" not in str(caught.value)
