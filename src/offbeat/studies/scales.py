"""The two sizes of every study: whole, and smoke for tests and a first look."""

from __future__ import annotations

from offbeat.studies.cell import Scale

WHOLE = Scale()
SMOKE = Scale(digits=1, prompts=8, held_out=64, evaluate_every=10, warm_start_target=0.03, warm_start_batch_size=32)
