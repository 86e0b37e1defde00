"""The two sizes of every study: whole, and smoke for tests and a first look."""

from __future__ import annotations

from offbeat.studies.cell import Scale

WHOLE = Scale()
STEPS = 150
"""Updates of a whole run."""
SMOKE = Scale(
    task={"name": "addition", "digits": 1},
    prompts=8,
    held_out=64,
    evaluate_every=10,
    warm_start_target=0.03,
    warm_start_batch_size=32,
)
