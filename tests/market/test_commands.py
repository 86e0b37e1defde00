"""`offbeat market`: one JSON object on standard output, bad input one line and exit 2, pages that open offline."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from offbeat.cli import main
from offbeat.commands.market_figures import critic_figure, phase_figure, traces_figure
from offbeat.commands.market_shock import _of_run
from offbeat.market.diagnostics.battery import run_tests
from offbeat.market.diagnostics.deviation import Deviation
from offbeat.market.diagnostics.exploitability import AffineSearch
from offbeat.market.estimate import estimate
from offbeat.market.shocks import Step


def call(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["offbeat", "market", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capsys.readouterr()
    return int(stopped.value.code or 0), output.out, output.err


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_equilibrium(monkeypatch, capsys) -> None:
    firms = ["--quality", "2", "--quality", "2", "--cost", "1", "--cost", "1"]
    arguments = ["--demand", "logit", *firms, "--mu", "0.25", "--outside", "0", "--json"]
    code, out, err = call(monkeypatch, capsys, "equilibrium", *arguments)
    told = json.loads(out)
    assert code == 0
    assert told["nash_prices"] == pytest.approx([1.472927] * 2, abs=1e-6)
    assert told["cartel_prices"] == pytest.approx([1.924981] * 2, abs=1e-6)
    assert told["nash_profits"] == pytest.approx([0.222927] * 2, abs=1e-6)
    assert told["cartel_profits"] == pytest.approx([0.337490] * 2, abs=1e-6)
    assert told["residual"] < 1e-12
    for end in ("nash", "cartel"):
        for (low, high), price in zip(told["interval"][end], told[f"{end}_prices"], strict=True):
            assert low < price < high
    assert told["critical_discount"] == pytest.approx([0.3931] * 2, abs=1e-4)
    assert "Nash" in err


@pytest.mark.parametrize("demand", ["linear", "hotelling", "ces", "homogeneous"])
def test_equilibrium_of_every_model(monkeypatch, capsys, demand: str) -> None:
    code, out, _ = call(monkeypatch, capsys, "equilibrium", "--demand", demand, "--json")
    assert code == 0
    told = json.loads(out)
    assert sum(told["cartel_profits"]) > sum(told["nash_profits"]) - 1e-12


def test_equilibrium_on_a_grid(monkeypatch, capsys) -> None:
    code, out, err = call(monkeypatch, capsys, "equilibrium", "--grid", "9", "--json")
    assert code == 0
    for clock in ("alternating", "poisson"):
        found = json.loads(out)["markov_perfect"][clock]
        assert found["regret"] < 1e-9
        assert 0 < found["gain"] < 1
        assert f"Markov-perfect on 9 prices, {clock}" in err


def test_bench(monkeypatch, capsys) -> None:
    code, out, _ = call(monkeypatch, capsys, "bench", "--markets", "64", "--events", "2000", "--repeats", "2", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["agent_events_per_second"] > 0
    assert told["agent_events_per_cpu_second"] > 0
    assert told["slowest"] <= told["agent_events_per_second"] <= told["fastest"]
    assert told["agent_events"] >= 4000


def test_shock_writes_a_page(monkeypatch, capsys, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    quick = ["--at", "8", "--watched", "8", "--lasting", "2", "--markets", "8", "--clock", "common", "--out", str(page)]
    code, out, err = call(monkeypatch, capsys, "shock", "grim-trigger", *quick, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["verdict"] == "collusion"
    assert told["deviation"]["punishment_depth"]["mean"] == pytest.approx(0.452, abs=0.001)
    assert told["deviation"]["net_gain"]["high"] < 0
    assert set(told["null_gains"]) == {"midpoint", "random", "lowest", "highest", "nash", "myopic"}
    assert "without any learning" in err
    text = page.read_text()
    assert "Verdict: collusion" in text
    assert "Null baselines" in text
    assert not re.search(r"(src|href)=\"https?://", without_scripts(text))


def test_the_word_is_not_used_of_constant_prices(monkeypatch, capsys, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    quick = ["--at", "8", "--watched", "8", "--markets", "8", "--out", str(page)]
    code, out, _ = call(monkeypatch, capsys, "shock", "cartel", *quick, "--json")
    assert code == 0
    assert "collusion" not in out
    assert "collusion" not in without_scripts(page.read_text())


def test_shock_of_a_run_tests_its_trainings(monkeypatch, capsys, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    small = ["events=100", "windows=1", "seeds=2", "parts=1", "warmup=2", "evaluate=2"]
    code, _, err = call(monkeypatch, capsys, "run", "--out", run, *(w for s in small for w in ("--set", f"run.{s}")))
    assert code == 0, err
    scenario, benchmark, entrants = _of_run(Path(run), 0, 4.0)
    assert entrants.units.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    quick = AffineSearch(candidates=8, generations=1, horizon=2.0)
    cut = Deviation(at=2.0, watched=2.0)
    done = run_tests(scenario, benchmark, entrants, cut, Step(2.0, 0.2, 1.0), 0, lambda words: None, quick)
    assert done.response.gain.count == 2
    assert [found.firm for found in done.exploited] == [0, 1]
    assert "2 trainings" in done.names[0]
    for wrong in (["--cell", "3"], ["--latency", "3"]):
        code, out, err = call(monkeypatch, capsys, "shock", run, *wrong)
        assert (code, out, len(err.strip().splitlines())) == (2, "", 1)


def test_audit_of_a_policy_and_of_a_log(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    Path("shop.py").write_text("def price(seen):\n    return 1.5\n\ndef broken(seen):\n    return float('nan')\n")
    quick = ["--markets", "2", "--horizon", "10"]
    code, out, err = call(monkeypatch, capsys, "audit", "shop:price", *quick, "--out", "page.html", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["verdict"] in ("supra-competitive", "competitive", "inconclusive")
    assert len(told["reasons"]) >= 5
    assert told["panel"][0]["rival"] == "nash"
    assert told["misbehaviour"] == []
    assert "verdict:" in err
    assert "Against a panel of rivals" in Path("page.html").read_text()
    unequal = ["--cost", "1.6", "--cost", "1"]  # the joint optimum does not benefit the firm of seat 0: it has no gain
    code, out, err = call(monkeypatch, capsys, "audit", "shop:price", *quick, *unequal, "--json")
    assert code == 0
    assert json.loads(out)["panel"][0]["gain"]["mean"] is None
    assert "profit gain not defined" in err
    code, out, _ = call(monkeypatch, capsys, "audit", "shop:broken", *quick, "--json")
    assert code == 0  # the audit is done: what the policy did is its result
    assert json.loads(out)["verdict"] == "misbehaved"
    rng = np.random.default_rng(0)
    price = rng.choice([1.2, 1.5, 1.8], 400)
    lines = [f"{p},{max(0.0, 2.2 - p)}" for p in price]
    Path("log.csv").write_text("price,quantity\n" + "\n".join(lines))
    code, out, _ = call(monkeypatch, capsys, "audit", "log.csv", "--cost", "1", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["calibrated_regret"]["low"] <= told["calibrated_regret"]["regret"] <= told["calibrated_regret"]["high"]
    assert told["periods"] == 400


@pytest.mark.parametrize(
    "arguments",
    [
        ["equilibrium", "--demand", "cubic"],
        ["equilibrium", "--cost", "-1"],
        ["equilibrium", "--mu", "0"],
        ["equilibrium", "--demand", "linear", "--mu", "0.5"],
        ["equilibrium", "--cost", "1", "--cost", "5", "--highest", "4"],
        ["equilibrium", "--rate", "-1"],
        ["equilibrium", "--grid", "5", "--cost", "1", "--cost", "1", "--cost", "1"],
        ["equilibrium", "--quality", "2", "--cost", "1", "--cost", "1"],
        ["bench", "--rate", "-1"],
        ["bench", "--latency", "-1"],
        ["bench", "--clock", "sundial"],
        ["shock"],
        ["shock", "grimm"],
        ["shock", "nash", "nash", "nash"],
        ["shock", "nash", "--kind", "rude"],
        ["shock", "nash", "--deviator", "4"],
        ["audit", "missing.csv", "--cost", "1"],
        ["audit", "missing.csv", "--cost", "1", "--cost", "2"],
        ["audit", "nothing:here"],
        ["audit", "no policy"],
        ["audit", "nothing:here", "--firm", "a"],
        ["audit", "nothing:here", "--horizon", "-3"],
    ],
)
def test_bad_input_is_one_line_and_exit_2(monkeypatch, capsys, tmp_path: Path, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 2, err
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == []


def test_figures_of_a_sweep_mark_what_diverged() -> None:
    gain, none = estimate(np.array([0.2, 0.3, 0.25])), estimate(np.array([]))
    chart = phase_figure(
        [1.0, 5.0], [0.0, 1.0], [[gain, gain], [gain, none]], [[0, 0], [0, 3]], [[True, True], [True, False]]
    )
    told = json.loads(chart.spec)
    assert told["data"][0]["text"][0][0].startswith("0.25<br>[")
    assert told["data"][0]["text"][1][1] == "no run"
    assert told["data"][1]["x"] == ["1"]
    assert told["data"][1]["y"] == ["5"]
    critic = json.loads(critic_figure(np.arange(3), np.array([[1.0, 2.0], [3.0, 90.0], [2.0, 900.0]]), 10.0, 0.1).spec)
    assert critic["data"][-1]["y"] == [11.0, 11.0]
    traces = json.loads(traces_figure(np.arange(4), np.ones((2, 4)), ["a", "b"], 1.4, 1.9).spec)
    assert len(traces["data"]) == 4
