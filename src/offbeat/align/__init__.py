"""Gradient alignment control (GAC, arXiv 2603.01501) for any torch optimizer. See README.md in this folder.

gac = GAC(optimizer)
...
optimizer.step()        # as before; gac.last says what became of it
"""

from offbeat.align.alignment import Alignment
from offbeat.align.gac import GAC
from offbeat.align.rule import AlignSettings, lags_up_to

__all__ = ["GAC", "AlignSettings", "Alignment", "lags_up_to"]
