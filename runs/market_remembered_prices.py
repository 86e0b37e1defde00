"""Claim R9: average-reward soft actor-critic gains .81 to .87 with two firms, .73 to .77 with three (Frick, arXiv
2604.15825; the results that its first program came with). Where they come from.

That program keeps the prices that firms see as a view of the array into which it writes new ones. So (1) a firm that
acts sees what the firms before it charge *now*, and (2) a transition is stored with the prices that came of it as the
prices it was chosen at: the critic reads the own new price twice, and values what follows at the same prices. Each can
be switched here; `as described` has neither. Everything else is that program's: simultaneous moves, entropy counts in
the actor's objective alone, temperature at most 1, positive values, the believed profit flow learnt from the newest
transition (step .03), actor 2 x 256 (tanh, steps .001, gradients clipped at .05), tau .001, 20,000 transitions
remembered, 512 random periods, box [Nash - .1, cartel + .1], money and prices unscaled. Critics are smaller for time:
2 x 128, batches of 64, steps of .0015 (there 2 x 2048, 512, .00005; `--critic`, `--batch`, `--critic-rate`).

python runs/market_remembered_prices.py --out out/remembered [--firms 2] [--periods 40000] [--seeds 6] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from offbeat.market.equilibrium import solve
from offbeat.market.estimate import estimate
from offbeat.market.gain import null_gains, profit_gain
from offbeat.market.industry import calvano
from offbeat.market.learners.networks import Params, copied, follow, forward, frozen, stacked, trained
from offbeat.market.learners.runfile import write_whole
from offbeat.market.learners.sac import log_slope

VARIANTS = {
    "as published": (True, True),
    "sees new prices": (True, False),
    "remembers new prices": (False, True),
    "as described": (False, False),
}
"""Whether a firm sees what those before it charge now; whether it remembers a period's prices as those before it."""
TOLD = 1000
"""Periods to a line of the trace."""
WARMUP, CAPACITY, TAU, CLIP, FLOW_RATE, ACTOR_RATE, ENTROPY = 512, 20_000, 0.001, 0.05, 0.03, 0.001, -1.0


def value(params: Params, prices: Tensor, action: Tensor) -> Tensor:
    return softplus(forward(params, torch.cat([prices, action], -1), torch.tanh))


class Firms:
    """A = n S agents, firm-major: n firms of S runs that share nothing."""

    def __init__(self, n: int, asked: argparse.Namespace) -> None:
        self.n, self.batch = n, asked.batch
        seeds = [1000 * (asked.seed + run) + firm for firm in range(n) for run in range(asked.seeds)]
        self.noise = torch.Generator().manual_seed(asked.seed)
        self.actor = trained(stacked(seeds, (n, 256, 256, 2)))
        critic = (n + 1, asked.critic, asked.critic, 1)
        self.critics = [trained(stacked([seed + 10**6 * k for seed in seeds], critic)) for k in (1, 2)]
        self.targets = [copied(critic) for critic in self.critics]
        self.temperature = torch.zeros(len(seeds), 1, 1).requires_grad_()
        self.flow = torch.zeros(len(seeds), 1, 1)
        both = self.critics[0] + self.critics[1]
        self.steps = {
            "actor": torch.optim.Adam(self.actor, ACTOR_RATE, fused=True),
            "critic": torch.optim.Adam(both, asked.critic_rate, fused=True),
            "temperature": torch.optim.Adam([self.temperature], ACTOR_RATE, fused=True),
        }
        size = min(CAPACITY, asked.periods)
        self.memory = torch.zeros(len(seeds), size, 2 * n + 2)  # prices, action, profit, prices that followed
        self.count = 0

    def sample(self, prices: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (A, B, 1) in [-1, 1] and their log density."""
        out = forward(self.actor, prices, torch.tanh)
        scale = softplus(out[..., 1:]) + 1e-6
        draw = torch.randn(scale.shape, generator=self.noise)
        raw = out[..., :1] + draw * scale
        density = -0.5 * draw.square() - scale.log() - 0.5 * float(np.log(2 * np.pi))
        return torch.tanh(raw), density - log_slope(raw)

    def least(self, critics: list[Params], prices: Tensor, action: Tensor) -> Tensor:
        return torch.minimum(*(value(critic, prices, action) for critic in critics))

    def remember(self, prices: Tensor, action: Tensor, profit: Tensor, following: Tensor) -> None:
        self.memory[:, self.count % self.memory.shape[1]] = torch.cat([prices, action, profit, following], -1)[:, 0]
        self.count += 1

    def learn(self) -> None:
        stored = min(self.count, self.memory.shape[1])
        chosen = torch.randint(0, stored, (len(self.memory), self.batch), generator=self.noise)
        rows = self.memory[torch.arange(len(self.memory))[:, None], chosen]
        prices, action, profit, following = rows.split([self.n, 1, 1, self.n], -1)
        mine, density = self.sample(prices)
        self.temperature.grad = -(density.detach() + ENTROPY).mean(1, keepdim=True)
        self.steps["temperature"].step()
        self.temperature.data.clamp_(max=0.0)
        gain = self.least([frozen(critic) for critic in self.critics], prices, mine)
        loss = (self.temperature.detach().exp() * density - gain).mean((1, 2)).sum()
        gradients = torch.autograd.grad(loss, self.actor)
        norm = sum((g.square().sum((1, 2), keepdim=True) for g in gradients), torch.zeros(())).sqrt()
        share = (CLIP / (norm + 1e-6)).clamp(max=1.0)
        for p, g in zip(self.actor, gradients, strict=True):
            p.grad = g * share
        self.steps["actor"].step()
        with torch.no_grad():
            target = profit - self.flow + self.least(self.targets, following, self.sample(following)[0])
        errors = [value(critic, prices, action) - target for critic in self.critics]
        self.steps["critic"].zero_grad()
        sum((error.square().mean((1, 2)).sum() for error in errors), torch.zeros(())).backward()
        self.steps["critic"].step()
        for target_critic, critic in zip(self.targets, self.critics, strict=True):
            follow(target_critic, critic, TAU)

    @torch.no_grad()
    def believe(self, prices: Tensor, action: Tensor, profit: Tensor, following: Tensor) -> None:
        onward = self.least(self.targets, following, self.sample(following)[0])
        self.flow += FLOW_RATE * (profit - self.flow + onward - self.least(self.targets, prices, action))


class Game:
    """Prices (n, S) period by period."""

    def __init__(self, asked: argparse.Namespace, sees_new: bool, remembers_new: bool) -> None:
        self.benchmark = solve(calvano(asked.firms))
        self.low = float(self.benchmark.nash.prices.min()) - 0.1
        self.high = float(self.benchmark.cartel.prices.max()) + 0.1
        self.sees_new, self.remembers_new = sees_new, remembers_new
        self.n, self.runs = asked.firms, asked.seeds
        self.firms = Firms(self.n, asked)
        self.prices = self.priced(self.at_random())
        self.period = 0

    def at_random(self) -> Tensor:
        return torch.tanh(torch.randn(self.n * self.runs, 1, 1, generator=self.firms.noise))

    def priced(self, action: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * (action.reshape(self.n, self.runs) + 1) / 2

    def seen(self, prices: Tensor) -> Tensor:
        """(A, 1, n): everybody sees all prices, firm 0's first."""
        return prices.T[None].expand(self.n, -1, -1).reshape(-1, 1, self.n).contiguous()

    def profits(self, prices: Tensor) -> Tensor:
        return torch.from_numpy(self.benchmark.industry.flow(prices.double().numpy()).astype(np.float32))

    def play(self) -> Tensor:
        """One period: profits (n, S)."""
        before = self.seen(self.prices)
        with torch.no_grad():
            action = self.at_random() if self.period < WARMUP else self.firms.sample(before)[0]
            for firm in range(1, self.n) if self.sees_new and self.period >= WARMUP else ():
                so_far = torch.cat([self.priced(action)[:firm], self.prices[firm:]])
                its = slice(firm * self.runs, (firm + 1) * self.runs)
                action[its] = self.firms.sample(self.seen(so_far))[0][its]
        self.prices = self.priced(action)
        profits, after = self.profits(self.prices), self.seen(self.prices)
        lived = (after if self.remembers_new else before, action, profits.reshape(-1, 1, 1), after)
        self.firms.remember(*lived)
        if self.period > 1:
            self.firms.learn()
        self.firms.believe(*lived)
        self.period += 1
        return profits

    @torch.no_grad()
    def quiet(self, periods: int = 40) -> Tensor:
        """Mean profits (n, S) of the learnt policies without noise, each seeing the prices of the period before."""
        prices, earned = self.prices, []
        for _ in range(periods):
            prices = self.priced(torch.tanh(forward(self.firms.actor, self.seen(prices), torch.tanh)[..., :1]))
            earned.append(self.profits(prices))
        return torch.stack(earned[periods // 2 :]).mean(0)


def settings_of(asked: argparse.Namespace) -> dict[str, Any]:
    """What a result depends on."""
    return {key: value for key, value in vars(asked).items() if key not in ("out", "only")}


def trace(asked: argparse.Namespace, name: str, file: Path, said: Callable[[str], None]) -> None:
    """Play, and leave in `file` what is known so far."""
    game = Game(asked, *VARIANTS[name])

    def gain(profits: Tensor) -> list[float]:
        return profit_gain(game.benchmark, profits.double().numpy()).tolist()

    nulls = null_gains(game.benchmark, (game.low, game.high)).as_dict()
    found: dict[str, Any] = {"settings": settings_of(asked), "nulls": nulls, "played": [], "quiet": []}
    for done in range(TOLD, asked.periods + 1, TOLD):
        found["played"].append(gain(torch.stack([game.play() for _ in range(TOLD)]).mean(0)))
        found["quiet"].append(gain(game.quiet()))
        write_whole(file, json.dumps(found))
        said(f"{name}: {done} of {asked.periods} periods, gain {np.mean(found['played'][-1]):.3f}")


def table(results: dict[str, dict[str, Any]]) -> str:
    """A line a variant: gains over the last tenth of play, as published, and without noise at its end."""
    lines = [
        "profit gain: played [95 % over seeds] (SD) by period; without noise at the end; untrained midpoint, random"
    ]
    for name, found in results.items():
        played = np.array(found["played"])
        marks = [*range(10, len(played), 10), len(played)]
        course = "; ".join(
            f"{at}k {(e := estimate(played[at - max(1, at // 10) : at].mean(0)))} ({e.sd:.3f})" for at in marks
        )
        nulls = found["nulls"]
        quiet = estimate(np.array(found["quiet"][-1]))
        lines.append(f"{name:22} {course}; {quiet} of {quiet.count}; {nulls['midpoint']:.2f}, {nulls['random']:.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=VARIANTS)
    for key, usual in (("firms", 2), ("periods", 40_000), ("seeds", 6), ("seed", 0), ("critic", 128), ("batch", 64)):
        parser.add_argument(f"--{key}", type=int, default=usual)
    parser.add_argument("--critic-rate", type=float, default=0.0015)
    asked = parser.parse_args()
    if asked.periods < TOLD:
        parser.error(f"--periods {asked.periods}: give at least {TOLD}")
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in [asked.only] if asked.only else VARIANTS:
        file = asked.out / f"{name.replace(' ', '-')}.json"
        found = json.loads(file.read_text()) if file.exists() else {"settings": settings_of(asked), "played": []}
        if found["settings"] != settings_of(asked):
            parser.error(f"{file}: of other settings ({found['settings']}); give another --out")
        if len(found["played"]) < asked.periods // TOLD:
            trace(asked, name, file, lambda words: print(f"\r{words}", end="", file=sys.stderr))
            print(file=sys.stderr)
        results[name] = json.loads(file.read_text())
    print(table(results))


if __name__ == "__main__":
    main()
