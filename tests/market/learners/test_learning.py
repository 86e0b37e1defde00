"""Every algorithm finds an optimum that is known exactly: the monopoly price of one firm in the logit market.

p = c + mu (1 + W(e^{(a - c) / mu - 1})) = 1.8019 for a = 2, c = 1, mu = .25. All seeds must end within the tolerance.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offbeat.market.learners.settings import study_from
from offbeat.market.learners.training import Training

ALGORITHMS = {
    "ddpg": {"actor_rate": 3e-3, "critic_rate": 5e-3, "hidden": (24, 24), "tau": 0.05},
    "td3": {"actor_rate": 3e-3, "critic_rate": 5e-3, "hidden": (24, 24), "tau": 0.05},
    "sac": {
        "actor_rate": 3e-3,
        "critic_rate": 5e-3,
        "temperature_rate": 5e-3,
        "hidden": (24, 24),
        "tau": 0.05,
        "entropy": -3,
    },
    "dqn": {"rate": 3e-3, "hidden": (24, 24), "tau": 0.05, "prices": 16},
    "ppo": {"actor_rate": 5e-3, "critic_rate": 1e-2, "hidden": (24, 24), "horizon": 40, "scale": 0.3},
    "q-learning": {"prices": 8, "alpha": 0.1},
}
TOLERANCE = {"dqn": 0.11, "q-learning": 0.11}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_firm_finds_the_monopoly_price(name: str) -> None:
    torch.set_num_threads(1)
    study = study_from(
        {
            "demand": {"quality": [2.0], "cost": [1.0]},
            "market": {"rho": 1.0, "observe": "prices", "clock": "common"},
            "learner": {"algorithm": name} | ALGORITHMS[name],
            "exploration": {"start": 0.5, "end": 0.05},
            "run": {
                "events": 6000 if name == "q-learning" else 4000 if name == "ppo" else 1600,
                "windows": 1,
                "seeds": 3,
                "parts": 1,
            },
        }
    )
    training = Training(study, 0)
    training.train_window()
    best = training.benchmark.cartel.prices[0]
    assert best == pytest.approx(1.8019, abs=1e-3)
    found = training.trace["quiet_price"][-1][0]
    assert np.abs(found - best).max() < TOLERANCE.get(name, 0.06), found


def test_average_reward_sac_learns_its_profit_flow() -> None:
    torch.set_num_threads(1)
    study = study_from(
        {
            "demand": {"quality": [2.0], "cost": [1.0]},
            "market": {"observe": "prices"},
            "learner": {"algorithm": "sac", "average_reward": True, "flow_rate": 0.05} | ALGORITHMS["sac"],
            "run": {"events": 1200, "windows": 1, "seeds": 2, "parts": 1},
        }
    )
    training = Training(study, 0)
    training.train_window()
    best = training.benchmark.cartel
    assert np.abs(training.trace["quiet_price"][-1] - best.prices[0]).max() < 0.08
    believed = training.learner.flow.flatten() / best.profits[0]
    assert ((believed > 0.5) & (believed < 1.1)).all()  # exploration and the entropy term are in what it believes


@pytest.mark.parametrize("name", ["ddpg", "q-learning"])
def test_against_a_rule_a_firm_learns_its_best_response(name: str) -> None:
    """The rival asks the Nash price whatever happens; the best response is the Nash price."""
    torch.set_num_threads(1)
    study = study_from(
        {
            "market": {"rho": 1.0, "observe": "prices", "rival": "nash", "clock": "common"},
            "learner": {"algorithm": name} | ALGORITHMS[name],
            "exploration": {"start": 0.5, "end": 0.05},
            "run": {"events": 12000 if name == "q-learning" else 3200, "windows": 1, "seeds": 2, "parts": 1},
        }
    )
    training = Training(study, 0)
    training.train_window()
    nash = training.benchmark.nash.prices[0]
    found = training.trace["quiet_price"][-1]
    np.testing.assert_allclose(found[1], nash, atol=1e-9)
    assert np.abs(found[0] - nash).max() < TOLERANCE.get(name, 0.06), found
    assert np.isnan(training.trace["critic_max"][-1][1]).all()
