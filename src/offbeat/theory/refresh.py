"""How a fixed staleness comes about: two ways to let data age, told apart wherever staleness is stated.

Invariant: `staleness` is the most lag under both, and no lag is larger than the number of updates made. Pure.
"""

from __future__ import annotations

from typing import Literal

Refresh = Literal["fixed-lag", "cyclic"]


def lag_at(step: int, staleness: int, refresh: Refresh) -> int:
    """How many updates old the data of update `step` (from 0) is. `staleness` is the most of it under both.

    fixed-lag: always `staleness` (all there is, at the beginning). cyclic: the data comes from a policy that is
    renewed every `staleness` + 1 updates, so the lag runs 0, 1, ..., `staleness`.
    """
    return min(step, staleness) if refresh == "fixed-lag" else step % (staleness + 1)
