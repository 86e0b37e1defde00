"""PettingZoo's and Gymnasium's own tests, and that the views say what the market says."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

from offbeat.errors import SettingsError
from offbeat.market.clocks import Clock, Periodic
from offbeat.market.course import play
from offbeat.market.equilibrium import solve
from offbeat.market.industry import calvano
from offbeat.market.quotes import Latency
from offbeat.market.rules import rule
from offbeat.market.scenario import Scenario
from offbeat.market.views.gymnasium_vector import PricingVector
from offbeat.market.views.pettingzoo_aec import PricingAEC
from offbeat.market.views.pettingzoo_parallel import PricingParallel

SCENARIOS = {
    "poisson": Scenario(latency=Latency(1.0), horizon=20.0),
    "clocked": Scenario(clock=Clock.common(1.0), horizon=20.0),
    "late": Scenario(clock=Clock.each(Periodic(0.7, 0.2), Periodic(0.3)), latency=Latency(1.0), horizon=20.0),
    "three": Scenario(calvano(3), Clock.alternating(3, 1.0), horizon=20.0),
}
BENCHMARK = solve(calvano())


@pytest.fixture(params=SCENARIOS, ids=list(SCENARIOS))
def scenario(request) -> Scenario:
    return SCENARIOS[request.param]


def test_pettingzoo_aec(scenario: Scenario) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        api_test(PricingAEC(scenario), num_cycles=200)
        seed_test(lambda: PricingAEC(scenario), num_cycles=20)


def test_pettingzoo_parallel(scenario: Scenario) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(PricingParallel(scenario), num_cycles=200)
        parallel_seed_test(lambda: PricingParallel(scenario), num_cycles=20)


def test_aec_pays_the_whole_profit_of_the_episode(scenario: Scenario) -> None:
    """Undiscounted, the rewards of an episode are the profit from each firm's first decision to the horizon."""
    undiscounted = Scenario(scenario.industry, scenario.clock, scenario.latency, 0.0, scenario.box, scenario.horizon)
    env = PricingAEC(undiscounted)
    env.reset(seed=5)
    paid = dict.fromkeys(env.possible_agents, 0.0)
    began: dict[str, float] = {}
    for agent in env.agent_iter():
        _, reward, _, over, info = env.last()
        paid[agent] += reward
        began.setdefault(agent, info["time"])
        env.step(None if over else np.array([1.6], dtype=np.float32))
    n = scenario.industry.firms
    flow = scenario.industry.flow(np.full((n, 1), float(np.float32(1.6))))[0, 0]
    if max(began.values()) == 0:  # all prices are 1.6 from time 0 on
        assert list(paid.values()) == pytest.approx([flow * scenario.horizon] * n)
    assert sum(paid.values()) > 0


def test_parallel_mask_says_who_acts(scenario: Scenario) -> None:
    env = PricingParallel(scenario)
    seen, infos = env.reset(seed=1)
    for _ in range(15):
        for agent in env.agents:
            mask = seen[agent]["action_mask"]
            assert mask[:-1].all() == mask[:-1].any() == infos[agent]["acts"]
            assert mask[-1]
        assert any(infos[agent]["acts"] for agent in env.agents)
        seen, _, _, _, infos = env.step({a: env.action_space(a).sample(seen[a]["action_mask"]) for a in env.agents})
    before = infos[env.agents[0]]["prices"]
    *_, infos = env.step(dict.fromkeys(env.agents, env.hold))
    assert infos[env.possible_agents[0]]["prices"] == before


def test_masks_and_horizons_are_refused_in_words() -> None:
    with pytest.raises(SettingsError, match="points"):
        PricingParallel(points=1)
    with pytest.raises(SettingsError, match="rivals"):
        PricingVector(Scenario(), [], 4)


@pytest.mark.parametrize("name", ["late", "clocked"])
def test_vector_view_earns_what_the_market_pays(name: str) -> None:
    """The rewards of one episode, discounted over its elapsed times, equal the exact value of the same play."""
    scenario = SCENARIOS[name]
    rival = rule("tit-for-tat", BENCHMARK, scenario.box)
    env = PricingVector(scenario, [rival], num_envs=16)
    env.reset(seed=3)
    value, worth, live = np.zeros(16), np.ones(16), np.ones(16, dtype=bool)
    started = np.full(16, np.nan)
    _, info = env.reset(seed=3)
    started = info["time"].copy()
    while live.any():
        _, reward, _, over, info = env.step(np.full((16, 1), 1.6, dtype=np.float32))
        value += np.where(live, worth * reward, 0.0)
        worth *= np.where(live, info["discount"], 1.0)
        live &= ~over

    def ask(decision):
        return np.full(len(decision), float(np.float32(1.6)))

    course = play(scenario.open(16, 3), [ask, rival], scenario.horizon)
    exact = course.value(scenario.rho, started, np.full(16, scenario.horizon))[0]
    assert value == pytest.approx(exact, abs=1e-9)


def test_vector_view_restarts_at_the_step_after_the_horizon() -> None:
    scenario = SCENARIOS["poisson"]
    env = PricingVector(scenario, [rule("nash", BENCHMARK, scenario.box)], num_envs=8)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (8, 4)
    last = np.zeros(8, dtype=bool)
    for _ in range(120):
        env.action_space.seed(0)
        observation, reward, ended, over, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert not ended.any()
        assert (reward[last] == 0).all()
        assert (info["time"][last] < scenario.horizon).all()
        last = over
    other, _ = env.reset(seed=0)
    again, _ = env.reset(seed=0)
    assert data_equivalence(other, again)


def test_the_market_itself_needs_neither() -> None:
    code = "import sys, offbeat.market.market, offbeat.market.equilibrium, offbeat.market.diagnostics.deviation as d; "
    code += "print(sorted({'pettingzoo', 'gymnasium', 'scipy', 'torch', 'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
