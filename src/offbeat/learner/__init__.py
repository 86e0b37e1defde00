"""The target policy in training: advantages, the clipped objective, one step, checkpoints, rescoring.

Import the submodules; this package itself imports no torch, so that settings and command line stay light.
"""
