"""The pages of the market in a browser: every figure is drawn and the console stays silent."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.market.test_commands import call
from tests.report.test_page import browse, needs_browser

SWEEP = ["market.rates=[1.0, 5.0]", "market.latencies=[0.0, 1.0]", "learner.hidden=[4]", "learner.batch=4"]
SWEEP += ["run.events=120", "run.windows=3", "run.seeds=2", "run.parts=1", "run.warmup=4", "run.evaluate=4"]


@needs_browser
@pytest.mark.parametrize(
    ("command", "least"),
    [
        (["sweep", *(word for s in SWEEP for word in ("--set", s)), "--out", "run"], 10),
        (["shock", "grim-trigger", "--at", "6", "--watched", "6", "--lasting", "2", "--markets", "4", "--out"], 4),
        (["audit", "pricers:midpoint", "--horizon", "10", "--markets", "2", "--out"], 5),
        (["audit", "pricers:raises_surrogate", "--horizon", "10", "--markets", "2", "--out"], 0),
    ],
    ids=["sweep", "shock", "audit", "misbehaving"],
)
def test_a_page_is_drawn_without_an_error(monkeypatch, capsys, tmp_path: Path, command: list[str], least: int) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parents[1] / "src")]))
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.html"
    code, _, err = call(monkeypatch, capsys, *command, *([] if command[-1] == "run" else [str(page)]))
    assert code == 0, err
    page = tmp_path / "run" / "report.html" if command[-1] == "run" else page
    dom, console = browse(page, tmp_path / "profile", "--dump-dom")
    assert console == []
    figures = dom.count('class="plot ')
    assert figures >= least
    if figures:
        assert re.search(rf'<html[^>]* data-drawn="{figures}"', dom)
