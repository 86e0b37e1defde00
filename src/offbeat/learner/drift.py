"""How far the parameters have moved, in Euclidean norm over all of them: since the start, since a version, in a step.

*Same-after-resume invariant*: a copy that is not at hand (after a resume, or beyond MOST_BYTES) is read from where
versions are stored, so the numbers do not depend on when a run was interrupted; what is stored nowhere is None.
Units: parameter units; rates are per unit of learning rate. Knows no loss and no optimizer state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from offbeat.learner.ranks import Ranks
from offbeat.learner.sharding import is_shard, local, rows

MOST_BYTES = 256 * 2**20
"""Copies of earlier versions are kept in memory up to so many bytes (two copies always)."""

StoredVersion = Callable[[int], Mapping[str, Any] | None]
"""Weights of a published version by Hugging Face name, or None where they are not stored (any more): tensors, or what
gives rows of them."""


class DriftFit(msgspec.Struct, frozen=True):
    """Sums of the least-squares line of y = log drift on x = log(sum of rates); `travelled` is that sum of rates.

    With a constant rate x is log t up to a constant, so the slope is the exponent gamma of |theta_t - theta_0| ~
    t^gamma: 1 is ballistic, 0.5 diffusive. Summing rates instead of steps keeps warm-up and decay out of it.
    """

    travelled: float = 0.0
    count: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def moved(self, rate: float, drift: float | None) -> DriftFit:
        """One iteration more, of so much rate in sum, which ended at this drift; a drift of 0 or None is no point."""
        travelled = self.travelled + rate
        if not drift or not math.isfinite(drift) or travelled <= 0:
            return msgspec.structs.replace(self, travelled=travelled)
        x, y = math.log(travelled), math.log(drift)
        return DriftFit(travelled, self.count + 1, self.x + x, self.y + y, self.xx + x * x, self.xy + x * y)

    @property
    def exponent(self) -> float | None:
        """The slope; None for fewer than three points or where they do not differ in x."""
        spread = self.count * self.xx - self.x**2
        if self.count < 3 or spread <= 1e-9 * self.count * self.xx:
            return None
        return (self.count * self.xy - self.x * self.y) / spread


class DriftMeter:
    """Copies of the parameters of version 0 and of the newest versions, and norms of differences to them: of a sharded
    policy each process has its parts, and a norm is a collective call."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        stored: StoredVersion | None,
        ranks: Ranks | None = None,
    ) -> None:
        """`names` are the parameters' names in a stored version's weights."""
        self._names = list(names)
        self._ranks = ranks or Ranks()
        self._sharded = any(map(is_shard, parameters))
        self._parameters: list[Tensor] = [local(parameter) for parameter in parameters]
        self._rows = [rows(parameter) for parameter in parameters]
        self._stored = stored or (lambda version: None)
        size = sum(parameter.numel() * parameter.element_size() for parameter in self._parameters)
        self._room = max(2, MOST_BYTES // max(1, size))
        self._copies: dict[int, list[Tensor]] = {}
        self._before: list[Tensor] = [torch.empty_like(part) for part in self._parameters]

    @torch.no_grad()
    def note(self, version: int) -> None:
        """Keep a copy of the parameters as they are: they are this version's. Version 0 stays, the oldest others go."""
        self._keep(version, [parameter.detach().clone() for parameter in self._parameters])

    def forget_before(self, version: int) -> None:
        """Drop copies of earlier versions than this one, except of version 0."""
        for old in [each for each in self._copies if 0 < each < version]:
            del self._copies[old]

    def to_each_lag(self, version: int, oldest: int, bound: int) -> tuple[float | None, ...]:
        """|theta_t - theta_{t-s}| for s = 0 .. oldest, t = version; notes theta_t, drops what is beyond the bound."""
        self.note(version)
        self.forget_before(version - bound)
        return (0.0, *(self.to_version(version - age) for age in range(1, oldest + 1)))

    def to_version(self, version: int) -> float | None:
        """|theta - theta_version|; None where that version is neither kept nor stored."""
        copy = self.of_version(version)
        return None if copy is None else self._distance(copy)

    def of_version(self, version: int) -> list[Tensor] | None:
        """The parameters of a version, or this process's parts, not to be changed; None where it is neither kept nor
        stored."""
        return self._copies.get(version) or self._read(version)

    @torch.no_grad()
    def mark(self) -> None:
        """Remember the parameters as they are, for `since_mark`."""
        torch._foreach_copy_(self._before, self._parameters)

    def since_mark(self) -> float:
        """|theta - theta at the last mark|."""
        return self._distance(self._before)

    @torch.no_grad()
    def _distance(self, copy: list[Tensor]) -> float:
        norms = torch._foreach_norm(torch._foreach_sub(self._parameters, copy))
        norm = torch.linalg.vector_norm(torch.stack(list(norms)))
        return float(self._ranks.total(norm.double().square()).sqrt() if self._sharded else norm)

    def _read(self, version: int) -> list[Tensor] | None:
        weights = self._stored(version)
        if weights is None:
            return None
        parts = zip(self._names, self._parameters, self._rows, strict=True)
        copy = [weights[name][mine].to(p.dtype, copy=self._sharded) for name, p, mine in parts]
        self._keep(version, copy)
        return copy

    def _keep(self, version: int, copy: list[Tensor]) -> None:
        self._copies[version] = copy
        while len(self._copies) > self._room:
            later = sorted(self._copies.keys() - {0})
            del self._copies[later[0] if len(later) > 1 else 0]
