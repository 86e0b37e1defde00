"""Studies by name. Each is imported only when asked for."""

from __future__ import annotations

from offbeat.studies.study import Design


def design(name: str) -> Design | None:
    """The study of this name; None where there is none."""
    match name:
        case "bias":
            from offbeat.studies.bias import BiasStudy

            return BiasStudy()
        case "collapse":
            from offbeat.studies.collapse import CollapseStudy

            return CollapseStudy()
        case "gac":
            from offbeat.studies.gac import GacStudy

            return GacStudy()
        case "lag-one":
            from offbeat.studies.lag_one import LagOneStudy

            return LagOneStudy()
        case "two-constraint":
            from offbeat.studies.two_constraint import TwoConstraintStudy

            return TwoConstraintStudy()
        case _:
            return None
