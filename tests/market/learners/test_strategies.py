"""Greedy paths, values, losses and responses against walking the game step by step."""

from __future__ import annotations

import numpy as np

from offbeat.market.industry import calvano
from offbeat.market.learners.sessions import PriceGame
from offbeat.market.learners.strategies import Strategies

GAME = PriceGame.on_grid(calvano(2), np.array([1.45, 1.6, 1.75, 1.9]))
M, DELTA = 4, 0.9


def random_strategies(sessions: int = 6) -> Strategies:
    rng = np.random.default_rng(3)
    return Strategies(GAME, rng.integers(0, M, (sessions, 2, M * M)), rng.integers(0, M * M, sessions))


def walk(greedy: np.ndarray, state: int, steps: int) -> list[int]:
    """States after `state`."""
    found = []
    for _ in range(steps):
        state = int(greedy[0, state]) * M + int(greedy[1, state])
        found.append(state)
    return found


def test_cycles_and_mean_profits_are_those_of_a_long_walk() -> None:
    learnt = random_strategies()
    for k, cycle in enumerate(learnt.cycles()):
        late = walk(learnt.greedy[k], int(learnt.start[k]), 16 + 12 * 60)[16:]
        assert set(late) == set(cycle.tolist())
        whole = late[: len(cycle) * (len(late) // len(cycle))]
        np.testing.assert_allclose(learnt.mean_profits()[k], GAME.profits[:, whole].mean(axis=1), rtol=1e-12)


def test_values_are_discounted_walks_and_losses_one_shot_deviations() -> None:
    learnt = random_strategies(3)
    values, losses = learnt.values(DELTA), learnt.losses(DELTA)
    weight = DELTA ** np.arange(400)

    def worth(k: int, firm: int, states: list[int]) -> float:
        return float((GAME.profits[firm][states] * weight[: len(states)]).sum())

    for k in range(3):
        for state in range(0, M * M, 3):
            for firm in range(2):
                on_path = walk(learnt.greedy[k], state, 400)
                np.testing.assert_allclose(values[k, firm, state], worth(k, firm, on_path), atol=1e-8)
                options = []
                for action in range(M):
                    pair = [int(learnt.greedy[k, i, state]) for i in range(2)]
                    pair[firm] = action
                    first = pair[0] * M + pair[1]
                    options.append(worth(k, firm, [first, *walk(learnt.greedy[k], first, 399)]))
                own = options[int(learnt.greedy[k, firm, state])]
                np.testing.assert_allclose(losses[k, firm, state], (max(options) - own) / abs(max(options)), atol=1e-8)


def test_grim_trigger_is_an_equilibrium_on_path_and_alternating_nonsense_is_not() -> None:
    cartel, nash = 3, 0
    grim = np.full((1, 2, M * M), nash)
    grim[:, :, cartel * M + cartel] = cartel
    learnt = Strategies(GAME, grim, np.array([cartel * M + cartel]))
    assert learnt.shapes() == ["constant symmetric"]
    assert learnt.equilibrium_on_path(0.95).all()
    assert not learnt.equilibrium_on_path(0.05).any()
    response = learnt.response(5)
    assert response.deviator[0, 0] == response.rivals[0, 1] == GAME.prices[cartel]
    assert response.rivals[0, 2] == GAME.prices[nash]
    assert response.net_gain(0.95)[0] < 0 < response.gain[0, 1]
    assert response.net_gain(0.05)[0] > 0


def test_a_response_to_the_planned_action_changes_nothing() -> None:
    grim = np.full((1, 2, M * M), 2)
    learnt = Strategies(GAME, grim, np.array([0]))
    np.testing.assert_allclose(learnt.response(5, deviation=2).gain, 0.0)


def test_the_static_reply_is_the_best_grid_price() -> None:
    learnt = random_strategies()
    joint = np.arange(M * M)
    for firm in range(2):
        for state, reply in zip(joint, learnt.static_reply(firm, joint), strict=True):
            rival = (state % M) if firm == 0 else state // M
            pairs = [a * M + rival if firm == 0 else rival * M + a for a in range(M)]
            assert reply == int(np.argmax(GAME.profits[firm][pairs]))
