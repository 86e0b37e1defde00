"""`offbeat study` as it is typed: a smoke study from nothing to its page, and the same again at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_smoke_study_ends_with_one_object_and_a_page_and_goes_on_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "offbeat.cli", "study", "bias", "--smoke", "--seeds", "1", "--json"]
    for _ in range(2):
        done = subprocess.run([*command, "--out", str(tmp_path / "s")], capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["study"], found["cells"], found["seeds"], found["evidence"]) == ("bias", 1, 1, False)
        assert found["core_seconds"] > 0
        assert Path(found["page"]).read_text(encoding="utf-8").count("Not evidence: a smoke run") == 1
    assert "S=4" not in done.stderr, "the second time there was nothing left to run"
    assert {file.name for file in (tmp_path / "s").iterdir()} == {"study.sqlite", "study.html", "workers.log", "lock"}
