"""docs/faults.md does not lie: each test it names is there, and so is each finding."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)


def test_every_test_it_names_exists() -> None:
    assert len(NAMED) > 40
    for file, test in NAMED:
        tree = ast.parse((ROOT / file).read_text())
        assert not test or test in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, f"{file}::{test}"


def test_every_row_of_the_table_has_a_test() -> None:
    table = PAGE[PAGE.index("## Faults of the field") :]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith(("| fault", "| **"))]
    assert len(rows) >= 30
    assert [row for row in rows if "`tests/" not in row] == []


def test_every_finding_is_told_of() -> None:
    """Names are an interface: scripts match them."""
    made = set()
    for file in ("processes", "prompts", "learning", "flow"):
        text = (ROOT / "src" / "offbeat" / "diagnosis" / f"{file}.py").read_text()
        made |= set(re.findall(r'Finding\(\s*"([a-z-]+)"', text))
    told = set(
        re.findall(r"`([a-z]+(?:-[a-z]+)*)`", PAGE[PAGE.index("## What went wrong") : PAGE.index("## The drill")])
    )
    assert made
    assert made <= told
