"""The registry of objectives. A new one is a file in this room and its name in the union below.

Importing it brings no torch: the settings are validated by these very classes.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field

from offbeat.objectives.bapo import Bapo
from offbeat.objectives.cispo import Cispo
from offbeat.objectives.dapo import Dapo
from offbeat.objectives.decoupled_ppo import DecoupledPpo
from offbeat.objectives.dr_grpo import DrGrpo
from offbeat.objectives.geo_rs import GeoRs
from offbeat.objectives.grpo import Grpo
from offbeat.objectives.gspo import Gspo
from offbeat.objectives.icepop import IcePop
from offbeat.objectives.m2po import M2po
from offbeat.objectives.mis import Mis
from offbeat.objectives.objective import Aggregation, Bounds, Objective, Terms, Tokens
from offbeat.objectives.sapo import Sapo
from offbeat.objectives.tis import Tis
from offbeat.objectives.topr import Topr

__all__ = ["NAMES", "OBJECTIVES", "Aggregation", "Bounds", "Grpo", "Objective", "ObjectiveSettings", "Terms", "Tokens"]

_Known = (
    Grpo | DrGrpo | Dapo | Gspo | Cispo | DecoupledPpo | Tis | Mis | GeoRs | IcePop | M2po | Topr | Sapo | Bapo
)  # fmt: skip

OBJECTIVES: dict[str, type[Objective]] = {kind.model_fields["name"].default: kind for kind in get_args(_Known)}
NAMES = tuple(OBJECTIVES)


def _named(value: Any) -> Any:
    """`objective = "dapo"` is short for a table with that name alone; a table without a name means grpo."""
    if isinstance(value, str):
        return {"name": value}
    return {"name": Grpo().name, **value} if isinstance(value, dict) else value


ObjectiveSettings = Annotated[
    Annotated[_Known, Field(discriminator="name")],
    BeforeValidator(_named),
]
