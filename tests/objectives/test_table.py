"""The table in the documentation is the registry's own."""

from __future__ import annotations

from pathlib import Path

from offbeat.objectives import OBJECTIVES, Objective
from offbeat.objectives.__main__ import table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")


def test_the_page_holds_the_table_as_the_registry_prints_it() -> None:
    assert table() in PAGE, "print it anew with `python -m offbeat.objectives` and put it into docs/objectives.md"


def test_every_objective_says_what_it_is() -> None:
    for name, kind in OBJECTIVES.items():
        assert issubclass(kind, Objective)
        assert kind().name == name
        assert kind.TITLE
        assert kind.FORMULA
        assert kind.SOURCE
        assert kind.terms is not Objective.terms
        assert (kind.survey is not Objective.survey) is kind.SURVEYS
