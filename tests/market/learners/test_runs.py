"""Runs and sweeps as their user meets them: settings, resume at any moment, the same numbers on any number of
cores, the page.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.commands.market_run_page import run_page
from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.market.clocks import Clock
from offbeat.market.course import play
from offbeat.market.diagnostics.divergence import largest_flow
from offbeat.market.learners import parts
from offbeat.market.learners.certificate import critic_bound
from offbeat.market.learners.checkpoint import Spent, load, save
from offbeat.market.learners.outcome import outcome
from offbeat.market.learners.policies import load_policies
from offbeat.market.learners.runfile import begin, part_file, read_market_run
from offbeat.market.learners.settings import load_study, study_from
from offbeat.market.learners.training import Training
from offbeat.market.market import Market

SMALL = {
    "market": {"rates": [1.0, 4.0], "latencies": [0.0, 1.0]},
    "learner": {"algorithm": "ddpg", "hidden": [6], "batch": 8},
    "align": {"mode": "cap"},
    "run": {"events": 160, "windows": 4, "seeds": 2, "parts": 2, "warmup": 10, "evaluate": 6},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "sweep"
    study = study_from(SMALL)
    begin(directory, study, "sweep", [critic_bound(study, rate) for rate, _ in study.cells])
    told: list[tuple[int, int]] = []
    parts.train(directory, lambda done, total: told.append((done, total)), cores=1)
    assert told[-1] == (160, 160)
    return directory


def test_a_finished_sweep_is_whole(finished: Path) -> None:
    run = read_market_run(finished)
    assert run.status == "finished"
    assert run.trace["price"].shape == (4, 2, 8)
    assert all(np.isfinite(values).all() for values in run.trace.values())
    assert run.cell.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert ((run.trace["price"] >= 1.0) & (run.trace["price"] <= 2.5)).all()
    calendar = run.trace["time"].sum(axis=0)
    assert calendar[:4].min() > 2 * calendar[4:].max()  # as many events take longer where the rate is lower
    assert not run.diverged.any()
    peaks = run.trace["critic_max"].max(axis=(0, 1))
    assert run.critic_peaks == pytest.approx(peaks / np.array(run.bounds)[run.cell])
    assert ((run.critic_peaks > 0) & (run.critic_peaks < 1.1)).all()
    assert {path.name for path in finished.iterdir()} == {
        "lock",
        "run.json",
        "part-000.safetensors",
        "part-001.safetensors",
    }


def test_a_rule_has_no_critic_and_hides_none(tmp_path: Path) -> None:
    """Beside a rule the first firm's critic alone is read: the rule's column is empty, and no peak is lost to it."""
    data = SMALL | {"market": {"rival": "tit-for-tat"}, "run": SMALL["run"] | {"parts": 1}}
    study = study_from(data)
    bounds = [critic_bound(study, rate) for rate, _ in study.cells]
    begin(tmp_path / "run", study, "run", bounds)
    parts.train(tmp_path / "run", lambda done, total: None, cores=1)
    run = read_market_run(tmp_path / "run")
    learnt, ruled = run.trace["critic_max"].transpose(1, 0, 2)
    assert np.isnan(ruled).all()
    assert run.critic_peaks == pytest.approx(learnt.max(axis=0) / bounds[0])
    assert (run.critic_peaks > 0).all()
    (cell,) = outcome(run, lambda words: None)
    assert cell.peak.count == len(run.critic_peaks) == 2
    assert cell.as_dict()["critic_peak"]["mean"] == pytest.approx(run.critic_peaks.mean())


def test_the_page_says_no_bound_only_where_there_is_none(finished: Path, tmp_path: Path) -> None:
    """A cell without a bound says so; one with a bound never does, even if none of its critics stayed finite."""
    run = read_market_run(finished)
    run.trace["critic_max"][:, :, run.cell == 1] = np.inf
    for bounds, said in ((run.bounds, 0), ([None, *run.bounds[1:]], 1)):
        bounded = replace(run, bounds=bounds)
        page = run_page(tmp_path / "page.html", bounded, outcome(bounded, lambda words: None)).read_text()
        assert page.count("no bound") == said


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "dqn", "ppo", "q-learning"])
def test_a_resumed_part_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    hidden = {} if name == "q-learning" else {"hidden": [6]}
    short = {"ppo": {"horizon": 7, "epochs": 2}, "q-learning": {"prices": 5}}.get(name, {"batch": 8})
    data = SMALL | {"learner": {"algorithm": name} | hidden | short}
    study = study_from(data)
    begin(tmp_path / "run", study, "sweep", [None] * 4)
    whole = Training(study, 1)
    while not whole.over:
        whole.train_window()
    broken = Training(study, 1)
    broken.train_window()
    broken.train_window()
    save(broken, tmp_path / "run", Spent(3.0, 2.0))
    resumed = Training(study, 1)
    assert load(resumed, tmp_path / "run") == Spent(3.0, 2.0)
    while not resumed.over:
        resumed.train_window()
    for key, windows in whole.trace.items():
        np.testing.assert_array_equal(np.stack(windows), np.stack(resumed.trace[key]), err_msg=key)
    for key, tensor in whole.learner.policy().items():
        assert tensor.equal(resumed.learner.policy()[key]), key


def test_numbers_do_not_depend_on_the_number_of_processes(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "again")
    for part in range(2):
        part_file(tmp_path / "again", part).unlink()
    parts.train(tmp_path / "again", lambda done, total: None, cores=2)
    one, two = read_market_run(finished), read_market_run(tmp_path / "again")
    for name, values in one.trace.items():
        np.testing.assert_array_equal(values, two.trace[name])


def test_a_process_that_dies_loses_a_window_at_most(tmp_path: Path) -> None:
    data = SMALL | {"run": SMALL["run"] | {"events": 80_000, "windows": 10_000, "parts": 1}}
    config = tmp_path / "c.toml"
    lines = [
        f"[{name}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in part.items()) for name, part in data.items()
    ]
    config.write_text("\n".join(lines))
    code = (
        "import offbeat.market.learners.parts as p; p.SAVE_EVERY = 0.0\n"
        "from offbeat.cli import app; app(['market', 'sweep', %r, '--out', %r], standalone_mode=False)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code % (str(config), str(tmp_path / "run"))],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        for _ in range(600):
            if part_file(tmp_path / "run", 0).exists():
                break
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
    finally:
        process.kill()
        process.communicate()
    run = read_market_run(tmp_path / "run")
    assert 0 < run.done < 10_000
    training = Training(run.study, 0)
    load(training, tmp_path / "run")
    assert training.window == run.done


def test_policies_play_what_was_learnt(finished: Path) -> None:
    run, policies = read_market_run(finished), load_policies(finished)
    many = policies.policy(np.array([5, 0, 5]))
    one = policies.policy(5)

    def prices(policy) -> np.ndarray:
        market = Market(run.benchmark.industry, 3, Clock.common(1.0), box=run.box, initial=np.array([1.2, 2.0]))
        return play(market, [policy, policy], 8.0).prices

    both, alone = prices(many), prices(one)
    np.testing.assert_allclose(both[:, :, 0], alone[:, :, 0], rtol=1e-6)
    np.testing.assert_allclose(both[:, :, 2], alone[:, :, 1], rtol=1e-6)
    assert np.abs(both[-1, :, 1] - both[-1, :, 0]).max() > 1e-4
    with pytest.raises(RunDirectoryError, match="there are runs 0 to 7"):
        policies.policy(8)


def test_the_certificate_follows_the_discount() -> None:
    industry = study_from({}).benchmark().industry
    flow = largest_flow(industry, (1.0, 2.5))
    rho = study_from({}).market.rho
    assert critic_bound(study_from({}), 5.0) == pytest.approx(flow / rho)
    event = study_from({"learner": {"discount": "event", "gamma": 0.9}})
    assert critic_bound(event, 5.0) == pytest.approx(flow / (5.0 + rho) / 0.1)
    common = study_from({"learner": {"discount": "event", "gamma": 0.95}, "market": {"clock": "common"}})
    assert critic_bound(common, 1.0) == pytest.approx(flow / rho, rel=1e-6)
    assert critic_bound(study_from({"learner": {"algorithm": "sac", "average_reward": True}}), 1.0) is None
    uneven = study_from({"learner": {"discount": "event", "gamma": 0.9}, "market": {"speeds": [4.0, 0.5]}})
    assert critic_bound(uneven, 2.0) == pytest.approx(flow / (1.0 + rho) / 0.1)


def test_an_update_comes_every_so_many_rounds_after_the_warm_up() -> None:
    data = SMALL | {"learner": {"algorithm": "ddpg", "hidden": [6], "batch": 8, "every": 3}}
    training = Training(study_from(data), 0)
    rounds, warmup = training.rounds, training.study.run.warmup
    for window in range(2):
        training.train_window()
        due = [k for k in range(window * rounds, (window + 1) * rounds) if k >= warmup and k % 3 == 0]
        assert set(training.learner.updates.tolist()) == {float(len(due))}


def test_firms_may_have_clocks_of_their_own_speed() -> None:
    study = study_from(SMALL | {"market": {"speeds": [1.0, 9.0]}, "run": SMALL["run"] | {"parts": 1}})
    training = Training(study, 0)
    market = training.market("speeds")
    decision, acted = market.reset(), np.zeros(2)
    for _ in range(300):
        np.add.at(acted, decision.firm, 1)
        decision = market.step(np.full(len(decision), 1.5))
    assert acted[1] / acted.sum() == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["market.rates=[-1]"], "market.rates"),
        (["market.latencies=[-1]"], "market.latencies"),
        (["market.box=[3, 2]"], "box"),
        (["demand.cost=[9, 9]"], "cost"),
        (["demand.model=steel"], "steel"),
        (["learner.algorithm=magic"], "magic"),
        (["learner.colour=1"], "learner.colour"),
        (["run.parts=99"], "run.parts"),
        (["run.events=100", "run.windows=80"], "run.events"),
        (["align.c_low=0.9"], "align.c_low"),
        (["align.mode=yes"], "align.mode"),
        (["run=3"], "--set"),
        (["demand.mu=0"], "mu"),
        (["market.rival=nobody"], "nobody"),
        (["market.speeds=[1.0]"], "market.speeds"),
        (["market.speeds=[1.0, 2.0]", "market.clock=common"], "market.speeds"),
        (["learner.every=0"], "learner.every"),
    ],
)
def test_wrong_settings_are_one_line(overrides, word) -> None:
    with pytest.raises(SettingsError, match=word) as caught:
        load_study(None, overrides)
    assert "\n" not in str(caught.value)


def test_commands_learn_resume_and_report(tmp_path: Path) -> None:
    run = CliRunner()
    small = [f"--set={s}" for s in ("run.events=80", "run.windows=2", "run.seeds=2", "run.parts=1", "run.warmup=5")]
    small += ["--set=learner.hidden=[6]", "--set=learner.batch=8"]
    done = run.invoke(app, ["market", "run", "--out", str(tmp_path / "a"), "--json", *small], catch_exceptions=False)
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["status"] == "finished"
    assert set(told["null_gains"]) >= {"midpoint", "random"}
    assert len(told["cells"]) == 1
    assert told["cells"][0]["quiet_gain"]["all"]["count"] == 2
    assert 0 < told["cells"][0]["markov_perfect_gain"] < 1
    assert told["processor_seconds"] > 0
    assert json.loads((tmp_path / "a" / "outcome.json").read_text()) == told
    page = Path(told["page"]).read_text()
    assert "Null baselines" in page
    assert '<script src="http' not in page
    again = run.invoke(app, ["market", "run", "--resume", str(tmp_path / "a"), "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["cells"] == told["cells"]
    for words in (
        ["run", "--out", str(tmp_path / "a")],
        ["sweep", "--resume", str(tmp_path / "a")],
        ["run", "--resume", str(tmp_path / "none")],
        ["run", "--resume", str(tmp_path / "a"), "--set", "run.seeds=3"],
        ["run", "--out", str(tmp_path / "b"), "--set", "market.rates=[1, 2]"],
        ["run", "missing.toml", "--out", str(tmp_path / "b")],
    ):
        failed = subprocess.run([sys.executable, "-m", "offbeat.cli", "market", *words], capture_output=True, text=True)
        assert failed.returncode == 2, (words, failed.stderr)
        assert len(failed.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "b").exists()


def test_a_damaged_directory_is_told_in_one_line(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "x")
    part_file(tmp_path / "x", 1).write_bytes(b"broken")
    for act in (lambda: read_market_run(tmp_path / "x"), lambda: load_policies(tmp_path / "x")):
        with pytest.raises(RunDirectoryError, match="damaged"):
            act()
    (tmp_path / "x" / "run.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="not a market run"):
        read_market_run(tmp_path / "x")


def test_only_one_process_may_train_in_a_directory(finished: Path) -> None:
    with parts.locked(finished), pytest.raises(RunDirectoryError, match="in use"):
        parts.train(finished, lambda done, total: None)
