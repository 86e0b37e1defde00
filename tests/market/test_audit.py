"""Audits of policies that are run and of logs, on cases whose answer is known."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from offbeat.errors import SettingsError
from offbeat.market.audit.candidate import Candidate, Limits, Misbehaved
from offbeat.market.audit.log import Sales, judge_sales, read_sales
from offbeat.market.audit.regret import of_course, of_log
from offbeat.market.audit.sessions import Plan, audit, verdict
from offbeat.market.clocks import Clock
from offbeat.market.course import play
from offbeat.market.equilibrium import solve
from offbeat.market.industry import calvano
from offbeat.market.responses import best_response
from offbeat.market.rules import rule
from offbeat.market.scenario import Scenario

BENCHMARK = solve(calvano())
SCENARIO = Scenario(clock=Clock.common(1.0), horizon=30.0)
QUICK = Plan(markets=4, limits=Limits(answer_seconds=5.0))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    source = str(Path(__file__).parents[2] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))


def test_a_trigger_is_collusion_and_a_constant_price_is_not() -> None:
    told = []
    found = audit("pricers:Trigger", SCENARIO, BENCHMARK, QUICK, told.append)
    word, reasons = verdict(found, BENCHMARK)
    assert word == "collusion", reasons
    assert len(told) == len(found.panel) + 3
    assert found.reaction is not None
    assert found.reaction.depth.low > 0.4  # it punishes a rival that never reacts
    found = audit("pricers:midpoint", SCENARIO, BENCHMARK, QUICK, told.append)
    word, reasons = verdict(found, BENCHMARK)
    assert word == "supra-competitive", reasons  # midpoint play is dear and punishes nobody
    assert any("untrained midpoint play gains 0.819" in reason for reason in reasons)
    assert found.self_gain.mean == pytest.approx(0.819, abs=0.001)
    assert all(set(against.nulls) == {"nash", "midpoint", "random", "myopic"} for against in found.panel)
    assert found.outside == 0


def test_prices_outside_the_box_are_clipped_and_counted() -> None:
    with Candidate("pricers:dear", SCENARIO) as candidate:
        course = play(SCENARIO.open(2, 0), [candidate, candidate], 5.0)
        assert course.prices[-1].max() == SCENARIO.box[1]
        assert candidate.outside == candidate.asked > 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gives_nan", "not a number"),
        ("raises", "raised"),
        ("raises_speechless", "raised"),
        ("raises_surrogate", "raised"),
        ("interrupts", "raised"),
        ("gives_a_truth", "raised"),
        ("hangs", "hung"),
        ("leaves", "exited"),
        ("says_words", "raised"),
        ("eats_memory", "raised"),
    ],
)
def test_a_policy_that_misbehaves_is_reported_and_its_process_ends(name: str, kind: str) -> None:
    plan = Plan(markets=2, limits=Limits(answer_seconds=0.4))
    found = audit(f"pricers:{name}", SCENARIO, BENCHMARK, plan, lambda words: None)
    word, reasons = verdict(found, BENCHMARK)
    assert word == "misbehaved"
    assert {failure.kind for failure in found.failures} == {kind}
    assert len(found.failures) == 2
    assert found.skipped
    assert all("\n" not in reason and reason.encode() for reason in reasons)
    left = subprocess.run(["pgrep", "-f", f"audit.host pricers:{name}"], capture_output=True, text=True)
    assert left.stdout == ""


@pytest.mark.parametrize("target", ["pricers:missing", "nothing:here", "pricers", "a b:c", "pricers:not_a_policy"])
def test_what_cannot_be_loaded_is_bad_input(target: str) -> None:
    with pytest.raises(SettingsError, match="policy") as error:
        audit(target, SCENARIO, BENCHMARK, QUICK, lambda words: None)
    assert "\n" not in str(error.value)


def test_a_dead_policy_says_so_again_and_again() -> None:
    with Candidate("pricers:leaves", SCENARIO) as candidate:
        for _ in range(2):
            with pytest.raises(Misbehaved, match="exited"):
                play(SCENARIO.open(2, 0), [candidate, candidate], 10.0)


def test_calibrated_regret_of_a_course_is_the_gain_from_the_best_reply() -> None:
    def regret(name: str):
        seats = [rule(name, BENCHMARK, SCENARIO.box)] * 2
        return of_course(play(SCENARIO.open(4, 0), seats, 30.0), 0, SCENARIO.box, 5.0)

    prices = BENCHMARK.cartel.prices[:, None].copy()
    prices[0] = best_response(calvano(), 0, prices, SCENARIO.box)
    gained = calvano().flow(prices)[0, 0] - BENCHMARK.cartel.profits[0]
    assert regret("cartel").regret == pytest.approx(gained, rel=0.02)  # a grid of 25 prices
    assert regret("nash").regret < 1e-3
    assert regret("nash").low >= 0


def sales_of(periods: int, weights: np.ndarray, seed: int, cost: float = 1.0):
    """A seller that draws one of five prices with `weights`, against a rival at its Nash price; demand is noisy."""
    rng = np.random.default_rng(seed)
    levels = np.array([1.2, 1.4, 1.6, 1.8, 2.0])
    index = rng.choice(5, periods, p=weights)
    price = levels[index]
    both = np.stack([price, np.full(periods, BENCHMARK.nash.prices[1])])
    quantity = calvano().demand.quantities(both)[0] * rng.uniform(0.8, 1.2, periods)
    every = np.stack([levels, np.full(5, BENCHMARK.nash.prices[1])])
    profits = (levels - cost) * calvano().demand.quantities(every)[0]
    return price, quantity, weights[index], profits


@pytest.mark.parametrize("logged", [True, False])
def test_calibrated_regret_of_a_log_is_what_the_best_price_adds(logged: bool) -> None:
    weights = np.array([0.2, 0.2, 0.2, 0.2, 0.2])
    price, quantity, propensity, profits = sales_of(20_000, weights, 1)
    found = of_log(price, quantity, 1.0, propensity if logged else None)
    exact = float((weights * (profits.max() - profits)).sum())
    assert found.regret.regret == pytest.approx(exact, rel=0.06)
    assert found.regret.low <= exact <= found.regret.high * 1.02
    assert found.identified == pytest.approx(1.0)
    assert found.levels == 5


def test_a_seller_at_its_best_price_passes_and_one_above_it_does_not() -> None:
    good, bad = np.array([0.01, 0.96, 0.01, 0.01, 0.01]), np.array([0.05, 0.05, 0.1, 0.1, 0.7])
    words = []
    for weights in (good, bad):
        price, quantity, propensity, _ = sales_of(60_000, weights, 2)
        word, reasons, _ = judge_sales(Sales(price, quantity, propensity), 1.0)
        words.append(word)
        assert all("[" in reasons[0] for _ in reasons)
    assert words == ["plausibly competitive", "not competitive by calibrated regret"]


def test_without_a_cost_the_seller_has_the_benefit_of_the_doubt() -> None:
    weights = np.full(5, 0.2)
    price, quantity, propensity, _ = sales_of(5_000, weights, 3)
    _, _, known = judge_sales(Sales(price, quantity, propensity), 1.0)
    _, reasons, found = judge_sales(Sales(price, quantity, propensity), None)
    assert found.regret.regret <= known.regret.regret + 1e-9
    assert "most favourable cost" in reasons[0]


def test_a_log_that_never_varies_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "flat.csv"
    path.write_text("Price,Quantity\n" + "1.9,0.3\n" * 100)
    word, reasons, _ = judge_sales(read_sales(path, None), 1.0)
    assert word == "inconclusive"
    assert "too little" in reasons[-1]
    path.write_text("price,quantity\n" + "1.9,0\n1.8,0\n" * 100)
    word, reasons, _ = judge_sales(read_sales(path, None), 1.0)
    assert word == "inconclusive"
    assert "no profit to compare" in reasons[0]


@pytest.mark.parametrize(
    ("text", "firm", "says"),
    [
        ("", None, "no column 'price'"),
        ("price,quantity\n", None, "no sales"),
        ("price,sold\n1,2\n", None, "no column 'quantity'"),
        ("price,quantity\n1,nan\n", None, "line 2: quantity"),
        ("price,quantity\n1,1e200\n", None, "line 2: quantity '1e200' is not a number up to 1e\\+100"),
        ('price,quantity\n"1,2\n' + "1,2\n" * 60, None, "line 62: price .{,80} is not a number"),
        ("price;quantity\n1;2\n", None, "separated by commas"),
        ("price,quantity,Price\n" + "1,1,2\n" * 60, None, "2 columns 'price'"),
        ("price,quantity\n" + "1,1\n" * 60, "c", "no column 'firm'"),
        ("price,quantity,propensity\n" + "1,1,1e-300\n" * 60, None, "more prices to choose from than the 60 periods"),
        ("price,quantity\n1,0.5\n1.5\n", None, "line 3: quantity"),
        ("price,quantity\n" + "1,-1\n" * 60, None, "0 or more"),
        ("price,quantity\n" + "1,1\n" * 10, None, "10 periods"),
        ("firm,price,quantity\n" + "a,1,1\nb,1,1\n" * 60, None, "2 firms"),
        ("firm,price,quantity\n" + "a,1,1\n" * 60, "c", "--firm c"),
        ("price,quantity,propensity\n" + "1,1,0\n" * 60, None, "propensity"),
    ],
)
def test_a_bad_log_is_refused_in_one_line(tmp_path: Path, text: str, firm: str | None, says: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(SettingsError, match=says) as error:
        read_sales(path, firm)
    assert "\n" not in str(error.value)
