"""How long responses are: a marginal distribution, correlation within a prompt's group, growth over training.

*Same lengths*: the length of a prompt's i-th response is a function of (seed, prompt, i) and of the version that
samples it, so every schedule meets the same lengths and a response that is sampled again has the length it had.
Correlation is a Gaussian copula: z = sqrt(rho) z_prompt + sqrt(1 - rho) z_response, length = quantile(Phi(z)).
"""

from __future__ import annotations

import json
from math import erf, exp, log, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from offbeat.errors import SettingsError
from offbeat.eventtime.streams import stream_seed
from offbeat.task_settings import Positive, Section

BLOCK = 512
"""Prompts whose lengths are drawn together."""
MOST_BLOCKS = 8
"""Kept at a time; what is asked for again is drawn again, the same."""
Floats = NDArray[np.float64]


class LengthSettings(Section):
    """Tokens of a response before growth; `cap` cuts what is longer (finish reason: length).

    lognormal: `median`, `sigma` of the logarithm. pareto: `minimum`, exponent `alpha`. empirical: `values`, or `file`
    with one number, or one object with a number under `tokens`, a line. constant: `median`.
    """

    kind: Literal["lognormal", "pareto", "empirical", "constant"] = "lognormal"
    median: float = Field(1000.0, gt=0)
    sigma: float = Field(1.0, ge=0, le=5)
    minimum: float = Field(100.0, gt=0)
    alpha: float = Field(1.5, gt=0)
    values: tuple[Positive, ...] = ()
    file: Path | None = None
    cap: Positive = 32_768
    correlation: float = Field(0.0, ge=0, le=1)
    """rho between responses to the same prompt, on the normal scale."""
    growth_per_version: float = Field(0.0, gt=-0.5, le=1)
    """Every version's responses are this share longer than its predecessor's."""
    prompt_tokens: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _has_data(self) -> LengthSettings:
        if self.kind == "empirical" and not self.values and self.file is None:
            raise ValueError("lengths.kind = empirical: no data; give lengths.values or lengths.file")
        return self

    def growth(self, version: int) -> float:
        return (1 + self.growth_per_version) ** version


class Lengths:
    """Lengths of one run. `of(prompt_id, version)` gives those of a whole group.

    Raises SettingsError where the file of an empirical model cannot be used.
    """

    def __init__(self, settings: LengthSettings, group_size: int, seed: int) -> None:
        self.settings = settings
        self.group_size = group_size
        self.seed = seed
        self._blocks: dict[int, list[list[float]]] = {}
        self._measured = np.sort(measured_lengths(settings)) if settings.kind == "empirical" else np.zeros(0)

    def of(self, prompt_id: int, version: int) -> list[int]:
        """Tokens of each response of a group, under a version."""
        block, place = divmod(prompt_id, BLOCK)
        drawn = self._blocks.get(block)
        if drawn is None:
            drawn = self._blocks[block] = self._draw(block)
            if len(self._blocks) > MOST_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
        growth, cap = self.settings.growth(version), self.settings.cap
        return [min(cap, max(1, round(length * growth))) for length in drawn[place]]

    def _draw(self, block: int) -> list[list[float]]:
        rng = np.random.default_rng(stream_seed(self.seed, "lengths", block))
        rho = self.settings.correlation
        shared = rng.standard_normal((BLOCK, 1))
        own = rng.standard_normal((BLOCK, self.group_size))
        drawn: list[list[float]] = self.quantile_of_normal(sqrt(rho) * shared + sqrt(1 - rho) * own).tolist()
        return drawn

    def quantile_of_normal(self, z: Floats) -> Floats:
        """The lengths that lie at the quantiles Phi(z) of the marginal distribution."""
        s = self.settings
        match s.kind:
            case "constant":
                return np.full_like(z, s.median)
            case "lognormal":
                return np.asarray(s.median * np.exp(s.sigma * z))
            case "pareto":
                return np.asarray(s.minimum * np.maximum(phi(-z), 1e-300) ** (-1 / s.alpha))
            case "empirical":
                places = np.minimum((phi(z) * len(self._measured)).astype(int), len(self._measured) - 1)
                return np.asarray(self._measured[places])


_GRID = np.linspace(-9, 9, 20_001)
_PHI = np.array([(1 + erf(x / sqrt(2))) / 2 for x in _GRID])


def phi(z: Floats) -> Floats:
    """The normal distribution function, interpolated (error below 1e-7)."""
    return np.asarray(np.interp(z, _GRID, _PHI), dtype=np.float64)


def measured_lengths(settings: LengthSettings) -> Floats:
    """The data of an empirical model. Raises SettingsError for a file that does not hold lengths."""
    if settings.file is None:
        return np.array(settings.values, dtype=float)
    try:
        lines = [line for line in settings.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"lengths.file = {settings.file}: cannot be read ({error}); name a JSONL file") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            found.append(float(value["tokens"] if isinstance(value, dict) else value))
        except (ValueError, TypeError, KeyError):
            raise SettingsError(
                f"lengths.file = {settings.file}: line {number} is {line[:40]!r}; write a number a line, or an object"
                ' like {"tokens": 812}'
            ) from None
        if not 1 <= found[-1] < float("inf"):
            raise SettingsError(f"lengths.file = {settings.file}: line {number} is {found[-1]}; give 1 token or more")
    if not found:
        raise SettingsError(f"lengths.file = {settings.file}: holds no lengths; write one number a line")
    return np.array(found)


def lognormal_sigma(median: float, mean: float, cap: float) -> float:
    """Sigma of the lognormal with this median whose mean is `mean` once it is cut at `cap`. Bisection.

    E[min(L, cap)] = median e^(sigma^2 / 2) Phi(k - sigma) + cap (1 - Phi(k)), k = ln(cap / median) / sigma.
    Raises ValueError where no sigma up to 5 gives that mean.
    """
    cdf = NormalDist().cdf

    def capped_mean(sigma: float) -> float:
        k = log(cap / median) / sigma
        return median * exp(sigma * sigma / 2) * cdf(k - sigma) + cap * (1 - cdf(k))

    low, high = 1e-6, 5.0
    if not median < mean < capped_mean(high):
        raise ValueError(f"no lognormal of median {median} cut at {cap} has mean {mean}")
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if capped_mean(middle) < mean else (low, middle)
    return (low + high) / 2
