"""What a learner is given of a decision, and what its action means: everything scaled to about [-1, 1].

Columns: prices seen, own first, then rivals in order, box to [-1, 1]; with "all" also their ages, as age / (1 +
age) with age in units of time (column n is the time since the own last decision). Latency and clocks are in these
ages; nothing hidden is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.market.market import Decision


def width(firms: int, observe: str) -> int:
    """Columns d of an observation."""
    return firms if observe == "prices" else 2 * firms


def observation(decision: Decision, box: tuple[float, float], observe: str) -> Tensor:
    """(rows, d) float32."""
    low, high = box
    prices = (decision.seen - low) * (2.0 / (high - low)) - 1.0
    if observe == "all":
        prices = np.concatenate([prices, decision.age / (1.0 + decision.age)], axis=1)
    return torch.from_numpy(prices.astype(np.float32))


def price(action: Tensor, box: tuple[float, float]) -> NDArray[np.float64]:
    """Prices (rows,) of actions (rows,); what lies beyond [-1, 1] is the end of the box, what is not a number its
    middle.
    """
    low, high = box
    share = (action.double().nan_to_num(nan=0.0, posinf=1.0, neginf=-1.0).clamp(-1, 1).numpy() + 1.0) / 2.0
    return np.clip(low + (high - low) * share, low, high)
