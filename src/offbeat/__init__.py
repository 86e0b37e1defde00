"""offbeat: asynchronous reinforcement learning that keeps the stability of synchronous training."""

__version__ = "0.3.0"
