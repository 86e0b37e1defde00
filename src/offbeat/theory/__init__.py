"""How much staleness and which learning rate a run survives: laws, fits, planner and autopilot over plain floats.

docs/stability.md has the formulas, their sources and what is a guess; every formula there names its function and its
test. Source of the laws: arXiv 2607.01083; the delayed quadratic (`quadratic`) is the test bed with an exact answer.
"""
