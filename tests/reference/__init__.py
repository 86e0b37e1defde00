"""Slow oracles: each formula as it stands in its source, with loops and floats only."""
