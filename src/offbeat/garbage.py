"""When Python looks for cycles of garbage. Knows no tensor."""

SELDOM = (100_000, 20, 100)
"""For `gc.set_threshold`: what is imported, run or simulated lives long and forms few cycles, and looking as often as
Python does by itself is a seventh of a simulation's time (`runs/garbage.py`)."""
