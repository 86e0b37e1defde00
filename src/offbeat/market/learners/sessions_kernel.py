"""The inner loop of Q-learning sessions, compiled by numba. *A session's numbers depend on its own seed alone.*

`play` is the simultaneous game (Calvano et al., AER 110(10) 2020), `play_in_turn` the alternating one (Klein, RAND
52(3) 2021). Both change their arguments in place and can be called again to go on. Chance is splitmix64 on one word
of state a session.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
UNIT = 1.0 / 9007199254740992.0  # 2^-53


@njit(nogil=True, cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def uniform(word: Any, row: int) -> float:
    """The next number in [0, 1) of the stream whose state is word[row] (uint64)."""
    word[row] += GOLDEN
    z = word[row]
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * UNIT


@njit(nogil=True, cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def _learn(q: Any, best: Any, greedy: Any, state: int, action: int, target: float, rate: float) -> None:
    """Q(state, action) moves `rate` of the way to `target`; the greedy action of the state follows."""
    value = q[state, action] + rate * (target - q[state, action])
    q[state, action] = value
    if value > best[state]:
        best[state] = value
        greedy[state] = action
    elif action == greedy[state] and value < best[state]:
        top = 0
        for other in range(1, q.shape[1]):
            if q[state, other] > q[state, top]:
                top = other
        best[state] = q[state, top]
        greedy[state] = top


@njit(nogil=True, cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def play(
    periods: int,
    profits: Any,
    q: Any,
    best: Any,
    greedy: Any,
    count: Any,
    word: Any,
    epsilon: Any,
    rate: float,
    discount: float,
    decay: float,
    memory: int,
    counterfactual: bool,
    stable: int,
) -> None:
    """Play up to `periods` periods of every session that has not converged.

    profits (n, m^n) of joint actions; q (sessions, n, states, m), best and greedy (sessions, n, states): maximum
    and its first place; count (sessions, 3): state, periods played, periods in a row in which no greedy action
    changed; word (sessions,) uint64; epsilon (sessions,): chance of exploring, times `decay` after every period.
    states is m^n with memory 1, 1 with memory 0. `counterfactual` updates every action's value with what it would
    have earned (Asker, Fershtman and Pakes: "synchronous"). A session has converged when the third count reaches
    `stable`.
    """
    firms, actions = q.shape[1], q.shape[3]
    chosen = np.zeros(firms, np.int64)
    stride = np.ones(firms, np.int64)
    for firm in range(firms - 2, -1, -1):
        stride[firm] = stride[firm + 1] * actions
    for session in range(q.shape[0]):
        state = count[session, 0]
        for _ in range(periods):
            if count[session, 2] >= stable:
                break
            joint = 0
            for firm in range(firms):
                chosen[firm] = greedy[session, firm, state]
                if uniform(word, session) < epsilon[session]:
                    chosen[firm] = int(uniform(word, session) * actions)
                joint += chosen[firm] * stride[firm]
            changed = False
            for firm in range(firms):
                mine = chosen[firm]
                first, last = (0, actions) if counterfactual else (mine, mine + 1)
                table, top, policy = q[session, firm], best[session, firm], greedy[session, firm]
                was = policy[state]
                onward = 0.0 if memory else top[0]
                for action in range(first, last):
                    would = joint + (action - mine) * stride[firm]
                    if memory:
                        onward = top[would]
                    target = profits[firm, would] + discount * onward
                    _learn(table, top, policy, state, action, target, rate)
                changed = changed or policy[state] != was
            count[session, 2] = 0 if changed else count[session, 2] + 1
            count[session, 1] += 1
            epsilon[session] *= decay
            state = joint if memory else 0
        count[session, 0] = state


@njit(nogil=True, cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def play_in_turn(
    periods: int,
    profits: Any,
    q: Any,
    best: Any,
    greedy: Any,
    count: Any,
    word: Any,
    epsilon: Any,
    rate: float,
    discount: float,
    decay: float,
) -> None:
    """Two firms move in turn; a price stands for two periods and the state is the rival's price.

    profits (2, m, m): own profit of a period, [firm, own price, rival's price]; q (sessions, 2, m, m), best and
    greedy (sessions, 2, m); count (sessions, 4): periods played, both prices, the state the firm to move saw at its
    last move; -1 before it has moved. The firm to move first learns of its last price p in state s: target =
    profit(p, s) + discount profit(p, s') + discount^2 max Q(s''). Here s and s' are the rival's prices in the two
    periods, and s'' = s' is what it sees now.
    """
    actions = q.shape[2]
    for session in range(q.shape[0]):
        for _ in range(periods):
            firm = count[session, 0] % 2
            own, seen = count[session, 1 + firm], count[session, 2 - firm]
            before = count[session, 3 + firm]
            if before >= 0:
                earned = profits[firm, own, before] + discount * profits[firm, own, seen]
                target = earned + discount * discount * best[session, firm, seen]
                _learn(q[session, firm], best[session, firm], greedy[session, firm], before, own, target, rate)
            action = greedy[session, firm, seen]
            if uniform(word, session) < epsilon[session]:
                action = int(uniform(word, session) * actions)
            count[session, 1 + firm] = action
            count[session, 3 + firm] = seen
            count[session, 0] += 1
            epsilon[session] *= decay
