"""Every deep algorithm against one update written out for one agent, with torch.nn and torch.optim: the stacked
agents must agree.

As each hand-written agent is alone, this is also the proof that an agent of a batch learns what it would learn
alone.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offbeat.market.learners.algorithms import DDPGSettings, DQNSettings, PPOSettings, SACSettings, TD3Settings
from offbeat.market.learners.chance import Chance
from offbeat.market.learners.ddpg import DDPG
from offbeat.market.learners.dqn import DQN
from offbeat.market.learners.learner import Learner
from offbeat.market.learners.ppo import PPO
from offbeat.market.learners.replay import Batch, Replay
from offbeat.market.learners.sac import SAC
from offbeat.market.learners.td3 import TD3

WIDTH, UPDATES, HIDDEN = 3, 4, (8, 8)
SEEDS, FIRMS = [4, 9], 2
RHO = torch.tensor([0.05, 0.5, 0.05, 0.5])
CLOSE = {"rtol": 2e-4, "atol": 2e-6}


def network(params: list[Tensor], agent: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k in range(0, len(params), 2):
        weight, bias = params[k][agent].detach(), params[k + 1][agent, 0].detach()
        layer = nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = weight.T.clone(), bias.clone()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def same(net: nn.Sequential, params: list[Tensor], agent: int) -> None:
    for k, layer in enumerate(net[::2]):
        torch.testing.assert_close(params[2 * k][agent], layer.weight.T, **CLOSE)
        torch.testing.assert_close(params[2 * k + 1][agent, 0], layer.bias, **CLOSE)


def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    for t, o in zip(target.parameters(), online.parameters(), strict=True):
        t.data = (1 - tau) * t.data + tau * o.data


class Recorded(Replay):
    """A replay that keeps the batches it gave."""

    def sample(self, size: int) -> Batch:
        self.given = [*getattr(self, "given", []), super().sample(size)]
        return self.given[-1]


def experience(learner: Learner, decisions: int = 60, grid: int = 0) -> Recorded:
    replay = Recorded(learner.agents, WIDTH, 50, Chance(learner.seeds("replay")))
    rng = np.random.default_rng(0)
    for k in range(decisions):
        agents = np.flatnonzero(rng.random(learner.agents) < 0.7) if k > 2 else np.arange(learner.agents)
        seen = rng.uniform(-1, 1, (len(agents), WIDTH))
        action = rng.integers(0, grid, len(agents)) * (2 / (grid - 1)) - 1 if grid else rng.uniform(-1, 1, len(agents))
        profit, elapsed = rng.uniform(0, 0.4, len(agents)), rng.exponential(1.0, len(agents))
        first = (k == 0) | (rng.random(len(agents)) < 0.05)
        rows = np.column_stack([seen, action, profit, elapsed, first])
        replay.add(agents, torch.from_numpy(rows.astype(np.float32)))
    return replay


def of(batch: Batch, agent: int) -> tuple[Tensor, ...]:
    return tuple(getattr(batch, name)[agent] for name in Batch.__slots__)


def rho_of(discount: str) -> Tensor | None:
    return RHO if discount == "time" else None


def kept(discount: str, agent: int, elapsed: Tensor, gamma: float) -> Tensor:
    return torch.exp(-RHO[agent] * elapsed) if discount == "time" else torch.full_like(elapsed, gamma)


@pytest.mark.parametrize("discount", ["time", "event"])
@pytest.mark.parametrize("kind", ["value", "advantage-rate"])
def test_ddpg(discount: str, kind: str) -> None:
    settings = DDPGSettings(hidden=HIDDEN, batch=16, tau=0.1, actor_rate=1e-2, critic_rate=1e-2, critic=kind, gamma=0.8)
    wait = torch.tensor([1.0, 0.2, 1.0, 0.2])
    learner = DDPG(SEEDS, FIRMS, WIDTH, settings, rho_of(discount), wait)
    nets = {name: [network(getattr(learner, name), a) for a in range(4)] for name in ("actor", "critic")}
    targets = {name: [network(getattr(learner, name), a) for a in range(4)] for name in ("actor", "critic")}
    values = [network(learner.value, a) for a in range(4)] if learner.value else []
    target_values = [network(learner.value, a) for a in range(4)] if learner.value else []
    replay = experience(learner)
    for _ in range(UPDATES):
        learner.learn(replay)
    for a in range(4):
        actor, critic = nets["actor"][a], nets["critic"][a]
        slow_actor, slow_critic = targets["actor"][a], targets["critic"][a]
        critics = [*critic.parameters(), *(values[a].parameters() if values else [])]
        actor_step, critic_step = torch.optim.Adam(actor.parameters(), 1e-2), torch.optim.Adam(critics, 1e-2)
        for batch in replay.given:
            o, u, profit, elapsed, after, weight = of(batch, a)
            with torch.no_grad():
                mu = torch.tanh(actor(o))
                if values:
                    later = target_values[a](after)
                else:
                    later = slow_critic(torch.cat([after, torch.tanh(slow_actor(after))], -1))
                y = profit + kept(discount, a, elapsed, 0.8) * later
            q = critic(torch.cat([o, u], -1))
            if values:
                q = values[a](o) + wait[a] * (q - critic(torch.cat([o, mu], -1)))
            critic_step.zero_grad()
            (weight * (q - y)).square().mean().backward()
            critic_step.step()
            actor_step.zero_grad()
            (-critic(torch.cat([o, torch.tanh(actor(o))], -1)).mean()).backward()
            actor_step.step()
            follow(slow_actor, actor, 0.1)
            follow(slow_critic, critic, 0.1)
            if values:
                follow(target_values[a], values[a], 0.1)
        same(actor, learner.actor, a)
        same(critic, learner.critic, a)
        same(slow_critic, learner.target_critic, a)
        same(slow_actor, learner.target_actor, a)
        if values:
            same(values[a], learner.value, a)


def test_td3() -> None:
    settings = TD3Settings(hidden=HIDDEN, batch=16, tau=0.1, actor_rate=1e-2, critic_rate=1e-2)
    learner = TD3(SEEDS, FIRMS, WIDTH, settings, RHO)
    start = [[network(net, a) for net in (learner.actor, *learner.critics)] for a in range(4)]
    slow = [[network(net, a) for net in (learner.actor, *learner.critics)] for a in range(4)]
    jitters = Chance(learner.seeds("smoothing"))
    drawn = [torch.from_numpy(jitters.normal(slice(None), 16).astype(np.float32)) for _ in range(UPDATES)]
    replay = experience(learner)
    for _ in range(UPDATES):
        learner.learn(replay)
    for a in range(4):
        actor, first, second = start[a]
        slow_actor, *slow_critics = slow[a]
        actor_step = torch.optim.Adam(actor.parameters(), 1e-2)
        critic_step = torch.optim.Adam([*first.parameters(), *second.parameters()], 1e-2)
        for k, batch in enumerate(replay.given):
            o, u, profit, elapsed, after, weight = of(batch, a)
            with torch.no_grad():
                jitter = (0.2 * drawn[k][a][:, None]).clamp(-0.5, 0.5)
                there = torch.cat([after, (torch.tanh(slow_actor(after)) + jitter).clamp(-1, 1)], -1)
                y = profit + torch.exp(-RHO[a] * elapsed) * torch.minimum(*(c(there) for c in slow_critics))
            critic_step.zero_grad()
            loss = sum((weight * (c(torch.cat([o, u], -1)) - y)).square().mean() for c in (first, second))
            loss.backward()
            critic_step.step()
            if k % 2 == 1:
                actor_step.zero_grad()
                (-first(torch.cat([o, torch.tanh(actor(o))], -1)).mean()).backward()
                actor_step.step()
                for target, online in zip(slow[a], start[a], strict=True):
                    follow(target, online, 0.1)
        same(actor, learner.actor, a)
        same(first, learner.critics[0], a)
        same(second, learner.critics[1], a)
        same(slow_critics[1], learner.target_critics[1], a)


@pytest.mark.parametrize(("average", "scale"), [(False, 1.0), (False, 20.0), (True, 1.0), (True, 20.0)])
def test_sac(average: bool, scale: float) -> None:
    settings = SACSettings(
        hidden=HIDDEN,
        batch=16,
        tau=0.1,
        actor_rate=1e-2,
        critic_rate=1e-2,
        temperature_rate=1e-2,
        reward_scale=scale,
        average_reward=average,
    )
    learner = SAC(SEEDS, FIRMS, WIDTH, settings, RHO)
    start = [[network(net, a) for net in (learner.actor, *learner.critics)] for a in range(4)]
    slow = [[network(net, a) for net in learner.critics] for a in range(4)]
    draws = Chance(learner.seeds("sampling"))
    drawn = [torch.from_numpy(draws.normal(slice(None), 16).astype(np.float32)) for _ in range(2 * UPDATES)]
    replay = experience(learner)
    for _ in range(UPDATES):
        learner.learn(replay)

    def sample(actor: nn.Module, o: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
        out = actor(o)
        law = torch.distributions.Normal(out[:, :1], out[:, 1:].clamp(-5, 2).exp())
        raw = law.mean + law.stddev * draw[:, None]
        squashed = torch.tanh(raw)
        return squashed, law.log_prob(raw) - torch.log(1 - squashed.square() + 1e-12)

    for a in range(4):
        actor, first, second = start[a]
        log_alpha, flow, peak = torch.zeros((), requires_grad=True), 0.0, 0.0
        steps = [torch.optim.Adam(p, 1e-2) for p in (actor.parameters(), [*first.parameters(), *second.parameters()])]
        temperature = torch.optim.Adam([log_alpha], 1e-2)
        for k, batch in enumerate(replay.given):
            o, u, earned, elapsed, after, weight = of(batch, a)
            profit = scale * earned
            alpha = log_alpha.detach().exp()
            with torch.no_grad():
                onward, density = sample(actor, after, drawn[2 * k][a])
                later = [c(torch.cat([after, onward], -1)) for c in slow[a]]
                if average:
                    y = profit - flow * elapsed + (later[0] + later[1]) / 2 - alpha * density
                else:
                    y = profit + torch.exp(-RHO[a] * elapsed) * (torch.minimum(*later) - alpha * density)
            values = [c(torch.cat([o, u], -1)) for c in (first, second)]
            peak = max(peak, *(float(value.detach().abs().max()) for value in values))
            errors = [weight * (value - y) for value in values]
            steps[1].zero_grad()
            sum(e.square().mean() for e in errors).backward()
            steps[1].step()
            if average:
                flow -= 0.01 * float((errors[0] + errors[1]).detach().sum() / 2 / (weight * elapsed).sum())
            action, density = sample(actor, o, drawn[2 * k + 1][a])
            gains = [c(torch.cat([o, action], -1)) for c in (first, second)]
            gain = (gains[0] + gains[1]) / 2 if average else torch.minimum(*gains)
            steps[0].zero_grad()
            (alpha * density - gain).mean().backward()
            steps[0].step()
            temperature.zero_grad()
            (-log_alpha * (density.detach() - 1.0).mean()).backward()
            temperature.step()
            for target, online in zip(slow[a], (first, second), strict=True):
                follow(target, online, 0.1)
        same(actor, learner.actor, a)
        same(second, learner.critics[1], a)
        torch.testing.assert_close(learner.log_alpha[a, 0, 0], log_alpha, **CLOSE)
        assert float(learner.flow[a]) == pytest.approx(flow, rel=1e-3, abs=1e-7)
        assert float(learner.critic_max[a]) == pytest.approx(peak / scale, rel=1e-3)  # in money


def test_dqn() -> None:
    settings = DQNSettings(hidden=HIDDEN, batch=16, tau=0.1, rate=1e-2, prices=5)
    learner = DQN(SEEDS, FIRMS, WIDTH, settings, RHO)
    start, slow = ([network(learner.critic, a) for a in range(4)] for _ in range(2))
    replay = experience(learner, grid=5)
    for _ in range(UPDATES):
        learner.learn(replay)
    for a in range(4):
        step = torch.optim.Adam(start[a].parameters(), 1e-2)
        for batch in replay.given:
            o, u, profit, elapsed, after, weight = of(batch, a)
            with torch.no_grad():
                y = profit + torch.exp(-RHO[a] * elapsed) * slow[a](after).max(-1, keepdim=True).values
            place = torch.tensor([round((float(x) + 1) * 2) for x in u])
            q = start[a](o)[torch.arange(16), place][:, None]
            step.zero_grad()
            (weight * (q - y)).square().mean().backward()
            step.step()
            follow(slow[a], start[a], 0.1)
        same(start[a], learner.critic, a)
        same(slow[a], learner.target, a)


def density(raw: Tensor, log_scale: Tensor, action: Tensor) -> Tensor:
    return torch.distributions.Normal(torch.tanh(raw)[:, 0], log_scale.exp()).log_prob(action)


def test_ppo() -> None:
    settings = PPOSettings(hidden=HIDDEN, horizon=2, epochs=3, actor_rate=1e-2, critic_rate=1e-2, lam=0.7, entropy=0.01)
    learner = PPO(SEEDS, FIRMS, WIDTH, settings, RHO)
    actors, values = ([network(net, a) for a in range(4)] for net in (learner.actor, learner.value))
    replay = experience(learner, decisions=20)
    learner.learn(replay)
    for a in range(4):
        same(actors[a], learner.actor, a)  # nothing yet
    learner.learn(replay)
    for a in range(4):
        rows = replay.rows[a, : replay.count[a]]
        o, u, profit, elapsed, first = rows[:, :3], rows[:, 3], rows[:, 4], rows[:, 5], rows[:, 6]
        log_scale = torch.tensor(math.log(0.5), requires_grad=True)
        steps = [torch.optim.Adam(p, 1e-2) for p in ([*actors[a].parameters(), log_scale], values[a].parameters())]
        number = len(rows)
        with torch.no_grad():
            v = values[a](o)[:, 0]
            gae, pairs = torch.zeros(number), [k for k in range(number - 1) if not first[k + 1]]
            for k in reversed(pairs):
                gamma = torch.exp(-RHO[a] * elapsed[k + 1])
                further = gae[k + 1] if k + 1 in pairs else 0.0
                gae[k] = profit[k + 1] + gamma * v[k + 1] - v[k] + 0.7 * gamma * further
            returns = (gae + v)[pairs]
            scaled = (gae[pairs] - gae[pairs].mean()) / (gae[pairs].std(correction=0) + 1e-8)

        behaviour = density(actors[a](o[pairs]), log_scale, u[pairs]).detach()
        for _ in range(3):
            ratio = (density(actors[a](o[pairs]), log_scale, u[pairs]) - behaviour).exp()
            gain = torch.minimum(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled) + 0.01 * log_scale
            steps[0].zero_grad()
            (-gain.mean()).backward()
            steps[0].step()
            steps[1].zero_grad()
            (values[a](o[pairs])[:, 0] - returns).square().mean().backward()
            steps[1].step()
        same(actors[a], learner.actor, a)
        same(values[a], learner.value, a)
        torch.testing.assert_close(learner.log_scale[a, 0, 0], log_scale, **CLOSE)


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "dqn", "ppo"])
def test_an_agent_learns_in_a_batch_what_it_learns_alone(name: str) -> None:
    def build(seeds: list[int], rho: Tensor) -> Learner:
        if name == "ddpg":
            return DDPG(seeds, 1, WIDTH, DDPGSettings(hidden=HIDDEN, batch=8), rho, torch.ones(len(seeds)))
        if name == "ppo":
            return PPO(seeds, 1, WIDTH, PPOSettings(hidden=HIDDEN, horizon=2), rho)
        kinds = {"td3": (TD3, TD3Settings), "sac": (SAC, SACSettings), "dqn": (DQN, DQNSettings)}
        kind, settings = kinds[name]
        return kind(seeds, 1, WIDTH, settings(hidden=HIDDEN, batch=8), rho)

    def trained(seeds: list[int]) -> dict[int, dict[str, Tensor]]:
        learner = build(seeds, torch.full((len(seeds),), 0.1))
        replay = Replay(learner.agents, WIDTH, 40, learner.chance("replay"))
        rng = np.random.default_rng(1)
        for k in range(30):
            row = np.append(rng.uniform(-1, 1, WIDTH + 1), [rng.random(), rng.exponential(), k == 0])
            row[WIDTH] = round(row[WIDTH] * 7) / 7  # a point of the grid, for DQN
            everyone = np.arange(learner.agents)
            replay.add(everyone, torch.from_numpy(np.tile(row, (learner.agents, 1)).astype(np.float32)))
            learner.learn(replay)
            learner.act(torch.zeros(learner.agents, WIDTH), everyone, *(torch.ones(learner.agents) for _ in range(3)))
        return {seed: {k: p[i].detach() for k, p in learner.policy().items()} for i, seed in enumerate(seeds)}

    together, alone = trained([3, 8, 21]), trained([8])
    for key, tensor in alone[8].items():
        torch.testing.assert_close(together[8][key], tensor, rtol=1e-4, atol=1e-6)
    assert any(not torch.allclose(together[3][key], together[8][key]) for key in alone[8])
