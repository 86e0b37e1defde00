"""Named random streams from one seed: the same name gives the same seed for ever, whatever else is drawn."""

from __future__ import annotations

from hashlib import blake2b


def stream_seed(seed: int, *name: str | int) -> int:
    """A 63-bit seed for the stream `name` of a run with this `seed`.

    Example: stream_seed(0, "trajectory", 17) fixes every token that trajectory 17 samples under given weights.
    """
    text = "/".join([str(seed), *map(str, name)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
