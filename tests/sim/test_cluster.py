"""Cluster files: presets load, bad ones are one line; lengths and costs are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import SettingsError
from offbeat.sim.cluster import changed, load_cluster, preset_names
from offbeat.sim.costs import Publish, Training, Transfer
from offbeat.sim.lengths import BLOCK, MOST_BLOCKS, Lengths, LengthSettings, lognormal_sigma
from tests.sim.clusters import cluster


def test_presets() -> None:
    assert preset_names() == ["dora-128", "dora-64", "longcat-4096", "scale-16k"]
    for name in preset_names():
        about = load_cluster(name)
        assert about.name == name
        assert about.lanes("multi-version") * about.lane_accelerators < about.accelerators
    assert load_cluster("scale-16k").accelerators == 16384
    assert load_cluster("longcat-4096").lanes("sync") == 32, "a version binds per expert-parallel group of 128"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accelerators = 0", "accelerators = 0"),
        ("accelerators = 4\n[decode]\nfloor_seconds = 1", "training: missing"),
        ("accelerators = 4\nlanes = 3\n[decode]\nfloor_seconds = 1\n[training]", "lanes = 3: unknown key"),
        ("accelerators = 4\ndecode = 3\n[training]", "decode = 3: a section is meant"),
        ("accelerators = 4\nlane_accelerators = 4\n[decode]\nfloor_seconds = 1\n[training]", "no lane fits"),
        ("accelerators = = 4", "not valid TOML"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_cluster(str(file))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    ["nonsense", "schedule.train_batch_size=100", "run.warmup=99", "schedule.rollout_batch_size=16", "slots=-1",
     "lengths.kind=empirical", "cache_tokens=100", "decode.floor_seconds=0", "accelerators.x=1", "training.work=inf",
     "decode.floor_seconds=nan", "publish.gigabytes_per_second=1e-320", "training.fixed_seconds=1e300",
     "accelerators=9_000_000_000", "schedule.train_batch_size=16_000_000_000", "lengths.median=inf"],
)  # fmt: skip
def test_bad_overrides_are_one_line(override: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_cluster("dora-64", [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["{}", "abc", "0", '{"tokens": "x"}', "Infinity"])
def test_bad_length_files_are_one_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "lengths.jsonl"
    file.write_text(f"12\n{line}\n")
    with pytest.raises(SettingsError, match="line 2"):
        Lengths(LengthSettings(kind="empirical", file=file), 2, 0)


def test_lengths_of_a_file_are_its_lengths(tmp_path: Path) -> None:
    file = tmp_path / "lengths.jsonl"
    file.write_text('5\n{"tokens": 7}\n11\n')
    store = Lengths(LengthSettings(kind="empirical", file=file, correlation=0.5), 4, 0)
    drawn = [n for prompt in range(600) for n in store.of(prompt, 0)]
    assert set(drawn) == {5, 7, 11}
    assert np.mean(drawn) == pytest.approx(23 / 3, rel=0.03)


def test_lognormal_lengths_have_the_mean_that_sigma_was_solved_for() -> None:
    sigma = lognormal_sigma(1097, 2400, 30720)
    store = Lengths(LengthSettings(median=1097, sigma=sigma, cap=30720), 16, 3)
    drawn = np.array([store.of(prompt, 0) for prompt in range(8000)], dtype=float)
    assert drawn.mean() == pytest.approx(2400, rel=0.02)
    assert np.median(drawn) == pytest.approx(1097, rel=0.02)
    with pytest.raises(ValueError):
        lognormal_sigma(1000, 900, 5000)


def test_pareto_lengths_have_their_tail() -> None:
    store = Lengths(LengthSettings(kind="pareto", minimum=100, alpha=1.5, cap=10**9), 8, 0)
    drawn = np.array([store.of(prompt, 0) for prompt in range(8000)]).ravel()
    assert drawn.min() >= 100
    assert np.mean(drawn > 1000) == pytest.approx(10**-1.5, rel=0.06)


@given(st.floats(0, 1), st.integers(0, 2**31))
@settings(max_examples=8, deadline=None)
def test_correlation_within_groups_is_what_was_asked_for(rho: float, seed: int) -> None:
    store = Lengths(LengthSettings(median=1e6, sigma=1.0, cap=10**12, correlation=rho), 2, seed)
    pairs = np.log([store.of(prompt, 0) for prompt in range(5000)])
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(rho, abs=0.05)


def test_lengths_grow_and_are_drawn_once() -> None:
    about = LengthSettings(median=1e4, cap=10**9, growth_per_version=0.02)
    first, again = Lengths(about, 4, 7), Lengths(about, 4, 7)
    assert again.of(900, 10) == first.of(900, 10)
    assert np.mean(np.array(first.of(3, 10)) / first.of(3, 0)) == pytest.approx(1.02**10, rel=1e-3)


def test_training_follows_two_points() -> None:
    assert Training(fixed_seconds=174, work=19660.8).seconds(64, 0, 1) == pytest.approx(481.2)
    assert Training(fixed_seconds=174, work=19660.8).seconds(128, 0, 1) == pytest.approx(327.6)


def test_weights_by_peers_double_their_holders() -> None:
    """Sixteen lanes ask at once: 1, 2, 4, 8 and then one more round of transfers."""
    way = Publish(kind="peer", gigabytes=10, gigabytes_per_second=10).deliveries()
    assert sorted(way.arrival(0.0, 0.0) for _ in range(16)) == [1.0] + [2.0] * 2 + [3.0] * 4 + [4.0] * 8 + [5.0]


def test_broadcasts_and_relays() -> None:
    broadcast = Publish(kind="broadcast", gigabytes=10, gigabytes_per_second=10, setup_seconds=1).deliveries()
    assert [broadcast.arrival(t, 0.0) for t in (0.0, 0.0, 1.5, 1.5, 7.0)] == [2.0, 2.0, 4.0, 4.0, 9.0]
    relay = Publish(kind="relay", gigabytes=10, gigabytes_per_second=5, bus_gigabytes_per_second=20).deliveries()
    assert [relay.arrival(t, 1.0) for t in (1.0, 2.0, 9.0)] == [3.5, 3.5, 9.5]


def test_keys_and_values_of_30720_tokens_take_a_sixth_of_a_second() -> None:
    moving = Transfer(bytes_per_token=262144, gigabytes_per_second=50)
    assert moving.seconds(30720) == pytest.approx(0.161, rel=0.01)


def test_schedules_that_take_turns_have_all_accelerators() -> None:
    about = changed(cluster(), accelerators=8)
    assert [about.lanes(s) for s in ("sync", "partial", "multi-version", "repack")] == [8, 8, 4, 4]
    assert [about.learner_accelerators(s) for s in ("sync", "multi-version")] == [8, 4]
    apart = changed(about, takes_turns=False)
    assert apart.lanes("sync") == apart.learner_accelerators("sync") == 4


def test_lengths_are_kept_in_room_that_does_not_grow_with_a_run() -> None:
    store = Lengths(LengthSettings(median=400, sigma=0.8, cap=4000), 2, 0)
    first = store.of(3, 0)
    for prompt in range(0, 100 * BLOCK, BLOCK):
        store.of(prompt, 0)
    assert len(store._blocks) == MOST_BLOCKS
    assert store.of(3, 0) == first
