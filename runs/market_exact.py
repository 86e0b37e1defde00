"""The exact benchmarks against the published ones: equilibria, outside goods, null values of the profit gain, the
frontier.

    python runs/market_exact.py

Prints each number beside the published one and exits 1 where one differs by more than its tolerance: 1e-6 for prices
and profits, 0.005 for null values. Published: Calvano et al. 2020 (n = 2) and tables computed from the closed forms,
to the digits shown.
"""

from __future__ import annotations

import sys

from offbeat.market.demand import Homogeneous, Hotelling, Linear, Logit
from offbeat.market.equilibrium import solve
from offbeat.market.frontier import critical_discount
from offbeat.market.gain import null_gains
from offbeat.market.industry import Industry, calvano

LOGIT = {
    2: (1.472927, 1.924981, 0.222927, 0.337490),
    3: (1.370163, 2.000000, 0.120163, 0.250000),
    4: (1.331461, 2.054411, 0.081461, 0.201103),
    5: (1.311521, 2.097231, 0.061521, 0.169446),
    10: (1.277607, 2.233286, 0.027607, 0.098329),
}
OTHERS = {
    "linear": (Industry(Linear(), (0.0, 0.0)), (3 / 7, 0.5, 0.1959183673, 0.2)),
    "hotelling": (Industry(Hotelling(), (0.0, 0.0)), (1.0, 1.25, 0.5, 0.625)),
    "homogeneous": (Industry(Homogeneous(), (0.0, 0.0)), (0.0, 0.5, 0.0, 0.125)),
}
NULLS = {(1.4277212341319092, 1.9701863449164754): (0.707, 0.521), (1.0, 2.0): (0.10, -0.44), (1.0, 3.0): (0.96, -0.28)}
failed = 0


def row(name: str, found: float, published: float, tolerance: float) -> None:
    """One comparison."""
    global failed
    good = abs(found - published) <= tolerance
    failed += not good
    print(f"{name:44} {found:12.7f} {published:12.7f} {abs(found - published):9.1e} {'' if good else 'DIFFERS'}")


def main() -> None:
    for n, published in LOGIT.items():
        found = solve(calvano(n))
        values = found.nash.prices[0], found.cartel.prices[0], found.nash.profits[0], found.cartel.profits[0]
        for name, value, known in zip(("p_N", "p_M", "pi_N", "pi_M"), values, published, strict=True):
            row(f"logit, n = {n}: {name}", float(value), known, 1e-6)
    for model, (industry, published) in OTHERS.items():
        found = solve(industry)
        values = found.nash.prices[0], found.cartel.prices[0], found.nash.profits[0], found.cartel.profits[0]
        for name, value, known in zip(("p_N", "p_M", "pi_N", "pi_M"), values, published, strict=True):
            row(f"{model}: {name}", float(value), known, 1e-6)
    for outside, known in ((-10.0, 11.25), (-5.0, 6.42), (-1.0, 2.73), (1.0, 1.366)):
        row(
            f"logit, a_0 = {outside:g}: p_M",
            float(solve(Industry(Logit(outside=outside))).cartel.prices[0]),
            known,
            0.01,
        )
    benchmark = solve(calvano())
    row("critical discount", float(critical_discount(benchmark)[0]), 0.3931, 5e-5)
    for box, (midpoint, uniform) in NULLS.items():
        found = null_gains(benchmark, box)
        row(f"null, box [{box[0]:.3f}, {box[1]:.3f}]: midpoint", found.midpoint, midpoint, 0.005)
        row(f"null, box [{box[0]:.3f}, {box[1]:.3f}]: random", found.random, uniform, 0.005)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
