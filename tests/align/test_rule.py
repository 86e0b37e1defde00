"""The rule against its formulas, and its laws."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.align.rule import AlignSettings, cosine_after, cosine_of, decide, gain, kept, lags_up_to
from offbeat.settings import settings_from
from offbeat.settings_sections import AlignSettings as Section
from tests.reference import gac as oracle

MODES = ("orth", "cap", "ratio", "ramp")
numbers = st.integers(-1000, 1000).map(lambda k: k / 100)
vectors = st.integers(2, 6).flatmap(lambda n: st.tuples(*[st.lists(numbers, min_size=n, max_size=n)] * 2))
vectors = vectors.filter(lambda pair: any(pair[0]) and any(pair[1]))
thresholds = st.tuples(st.floats(0, 0.8), st.floats(0.01, 0.19)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.parametrize("mode", MODES)
@given(c=st.floats(0.001, 0.999), bounds=thresholds)
def test_gain_is_the_formulas_and_within_0_and_1(mode: str, c: float, bounds: tuple[float, float]) -> None:
    low, high = bounds
    settings = AlignSettings(mode=mode, c_low=low, c_high=high)
    if c > low:
        assert gain(settings, c) == pytest.approx(oracle.gain(mode, c, low, high), abs=1e-12)
    assert 0 <= gain(settings, c) <= 1


@given(pair=vectors, mode=st.sampled_from(MODES), bounds=thresholds)
def test_norm_and_cosine_afterwards_are_those_of_the_vector(
    pair: tuple[list[float], list[float]], mode: str, bounds: tuple[float, float]
) -> None:
    g, reference = pair
    c = oracle.cosine(g, reference)
    if not bounds[0] < c < 0.999:
        return
    alpha = gain(AlignSettings(mode=mode, c_low=bounds[0], c_high=bounds[1]), c)
    made = oracle.projected(g, reference, alpha)
    assert kept(c, alpha) == pytest.approx(oracle.norm(made) / oracle.norm(g), rel=1e-6)
    assert cosine_after(c, alpha) == pytest.approx(oracle.cosine(made, reference), abs=1e-6)
    assert oracle.dot(made, g) == pytest.approx(oracle.dot(g, g) * (alpha * c * c + 1 - c * c), rel=1e-6)
    assert oracle.dot(made, g) > 0  # still an ascent direction of the batch's objective


@given(c=st.floats(0.21, 0.999))
def test_cap_ends_at_c_low_and_orth_at_0(c: float) -> None:
    cap, orth = AlignSettings(mode="cap", c_low=0.2, c_high=1), AlignSettings(mode="orth", c_low=0.2, c_high=1)
    assert cosine_after(c, gain(cap, c)) == pytest.approx(0.2, abs=1e-6)
    assert 0 < gain(cap, c) < 1
    assert cosine_after(c, gain(orth, c)) == 0
    assert kept(c, gain(orth, c)) == pytest.approx(math.sqrt(1 - c * c), rel=1e-9)


def test_known_values() -> None:
    cap = AlignSettings(mode="cap", c_low=0.2, c_high=0.9)
    assert gain(cap, 0.6) == pytest.approx(0.2722, abs=1e-4)
    assert gain(cap, 0.2) == 1
    assert gain(cap, 0.2 + 1e-9) == pytest.approx(1, abs=1e-6)
    ramp = AlignSettings(mode="ramp", c_low=0.2, c_high=0.9)
    assert (gain(ramp, 0.2), gain(ramp, 0.9)) == (1, 0)
    assert gain(AlignSettings(mode="ratio", c_low=0.2, c_high=0.9), 0.8) == pytest.approx(0.25)


def test_regimes_and_the_watchdog() -> None:
    settings = AlignSettings(mode="cap", c_low=0.1, c_high=0.5, max_skips=2)
    regimes = [decide(settings, c, 0).regime for c in (None, -0.9, 0.1, 0.11, 0.5, 0.51)]
    assert regimes == ["invalid", "safe", "safe", "projected", "projected", "skipped"]
    assert [decide(settings, 0.9, skips).regime for skips in range(4)] == ["skipped", "skipped", "released", "released"]
    assert decide(settings, 0.9, 2).gain == gain(settings, 0.9)
    assert decide(AlignSettings(mode="cap", max_skips=0), 0.9, 99).regime == "skipped"
    assert decide(AlignSettings(mode="cap", c_high=1.0), 1.0, 0).regime == "projected"
    assert decide(AlignSettings(mode="observe"), 0.99, 0) == decide(AlignSettings(mode="off"), 0.99, 0)
    assert decide(AlignSettings(mode="observe"), 0.99, 0).gain == 1
    both = AlignSettings(mode="cap", c_low=0.1, c_high=0.5, two_sided=True)
    assert [decide(both, c, 0).regime for c in (-0.05, -0.3, -0.6)] == ["safe", "projected", "skipped"]
    assert cosine_after(-0.3, decide(both, -0.3, 0).gain) == pytest.approx(-0.1)


def test_what_is_not_valid_is_none_and_never_0() -> None:
    assert cosine_of(0.0, 1.0, 1.0) == 0
    for sums in ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (math.nan, 1.0, 1.0), (1.0, math.inf, 1.0), (1.0, 1.0, math.nan)):
        assert cosine_of(*sums) is None
    assert cosine_of(5.0, 1.0, 1.0) == 1  # rounding


@given(pair=vectors, k=st.floats(1e-3, 1e3), m=st.floats(1e-3, 1e3))
def test_scale_changes_neither_cosine_nor_regime(pair: tuple[list[float], list[float]], k: float, m: float) -> None:
    a, b = pair
    c = cosine_of(oracle.dot(a, b), oracle.dot(a, a), oracle.dot(b, b))
    a, b = [k * x for x in a], [m * x for x in b]
    scaled = cosine_of(oracle.dot(a, b), oracle.dot(a, a), oracle.dot(b, b))
    assert c is not None
    assert scaled == pytest.approx(c, abs=1e-9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "project"}, "mode = 'project': use one of off, observe"),
        ({"reference": "old"}, "reference"),
        ({"c_low": 0.5, "c_high": 0.5}, "c_low = 0.5, c_high = 0.5"),
        ({"c_low": -0.1}, "c_low"),
        ({"c_high": 1.5}, "c_high"),
        ({"max_skips": -1}, "max_skips = -1"),
        ({"max_norm": 0.0}, "max_norm = 0.0"),
        ({"lags": (0, 3)}, "lags"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        AlignSettings(**wrong)
    assert "\n" not in str(caught.value)


def test_lags_double_up_to_twice_the_staleness() -> None:
    assert lags_up_to(0) == (1,)
    assert lags_up_to(1) == (1, 2)
    assert lags_up_to(8) == (1, 2, 4, 8, 9, 16)
    assert lags_up_to(6) == (1, 2, 4, 6, 7, 12)


def test_the_run_settings_are_these_settings() -> None:
    """One set of names and defaults, but for what a run sets by itself."""
    section, own = Section(mode="cap").model_dump(), AlignSettings()
    span = section.pop("lag_span")
    assert span == 0
    assert {name: getattr(own, name) for name in section} == section
    assert set(AlignSettings.__dataclass_fields__) - set(section) == {"lags", "seed", "max_norm"}
    assert settings_from({}).learner.align.mode == "off"


def test_a_leaf_of_torch_alone() -> None:
    code = (
        "import sys, offbeat.align; bad = {'numpy', 'transformers', 'pydantic', 'msgspec', 'accelerate'};"
        "print(sorted(m for m in sys.modules if m.startswith('offbeat.') and not m.startswith('offbeat.align')),"
        " sorted(bad & set(sys.modules) - {'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
