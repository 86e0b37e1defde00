"""The page: self-contained, in every state a run can be in, and drawn without an error in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from PIL import Image
from plotly.offline import get_plotlyjs

from offbeat import events as e
from offbeat.errors import RunDirectoryError
from offbeat.report.page import write_report
from offbeat.report.style import VERSION_CYCLE
from tests.report.simulated_run import EditableRun, Row, simulated_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the page cannot be drawn")
FIGURES = 4 + 3 + 2 + 6 + 6 + 1  # learning, throughput, staleness and lengths, health, stability, the timeline


@pytest.fixture(scope="module")
def made() -> EditableRun:
    return simulated_run()


def part_of(made: EditableRun, rows: list[Row]) -> EditableRun:
    """The run when it had only these rows: without the payloads, rewards and prompts of what was still to come."""
    finished = {(row.event.trajectory_id, row.event.attempt) for row in rows if isinstance(row.event, e.Finished)}
    scored = {(row.event.trajectory_id, row.event.attempt) for row in rows if isinstance(row.event, e.Scored)}
    issued = {c.group_id for row in rows for c in row.commands if isinstance(c, e.Generate)}
    return EditableRun(
        made.settings,
        rows,
        {key: payload for key, payload in made.payloads.items() if key in finished},
        {key: reward for key, reward in made.rewards.items() if key in scored},
        {group: ids for group, ids in made.prompt_ids.items() if group in issued},
    )


def own_text(page: Path) -> str:
    """The page without plotly.js."""
    text = page.read_text(encoding="utf-8")
    assert get_plotlyjs() in text
    return text.replace(get_plotlyjs(), "")


def test_default_place_and_other_place(made: EditableRun, tmp_path: Path) -> None:
    directory = made.write(tmp_path / "run")
    assert write_report(directory) == directory / "report.html"
    assert write_report(directory, tmp_path / "other.html") == tmp_path / "other.html"
    assert (tmp_path / "other.html").read_text() == (directory / "report.html").read_text()
    assert not list(tmp_path.glob("**/*.part"))


def test_nothing_is_loaded_from_elsewhere(made: EditableRun, tmp_path: Path) -> None:
    text = own_text(write_report(made.write(tmp_path / "run")))
    assert not re.search(r"(src|href)\s*=\s*[\"']?(?![\"']?data:)\S", text)
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text


def test_what_improved_is_in_the_header(made: EditableRun, tmp_path: Path) -> None:
    text = own_text(write_report(made.write(tmp_path / "run")))
    results = {row.event.version: row.event for row in made.rows if isinstance(row.event, e.Evaluated)}
    before, after = results[0].exact_match_greedy, results[max(results)].exact_match_greedy
    assert f"<h1>Held-out exact match {100 * before:.1f} % → {100 * after:.1f} %</h1>" in text
    sampled = results[0].exact_match_sampled, results[max(results)].exact_match_sampled
    for first, last in ((before, after), sampled):
        assert f">{100 * first:.1f} → {100 * last:.1f} %<" in text
        assert f">{100 * (last - first):+.1f} points<" in text
    assert "max 2, bound 2" in text
    assert f"in {made.rows[-1].now:.1f} s of run time<" in text
    assert ">kept<" in text


def test_incidents_are_listed(made: EditableRun, tmp_path: Path) -> None:
    text = own_text(write_report(made.write(tmp_path / "run")))
    for words in ("lane lost", "restarted", "aborted", "quarantined", "resumed", "update skipped", "stop: finished"):
        assert f">{words}<" in text


def test_a_broken_law_is_shown_with_its_evidence(made: EditableRun, tmp_path: Path) -> None:
    payloads = dict(made.payloads)
    del payloads[0, max(attempt for t, attempt in payloads if t == 0)]
    damaged = EditableRun(made.settings, made.rows, payloads, made.rewards, made.prompt_ids)
    text = own_text(write_report(damaged.write(tmp_path / "run")))
    assert ">1 broken<" in text
    assert "its payload is not stored" in text


@pytest.mark.parametrize("share", [0.0, 0.005, 0.02, 0.1, 0.3, 0.6, 0.97])
def test_every_stage_of_a_run_gives_a_page(made: EditableRun, tmp_path: Path, share: float) -> None:
    rows = made.rows[: round(share * len(made.rows))]
    text = own_text(write_report(part_of(made, rows).write(tmp_path / "run")))
    assert '<span class="badge running">running</span>' in text
    trained = any(isinstance(row.event, e.Trained) for row in rows)
    assert ("Nothing to show yet." in text) is not trained
    issued = any(isinstance(command, e.Generate) for row in rows for command in row.commands)
    assert (">kept<" in text) is issued, "a run that issued nothing has kept nothing"
    assert (">max " in text) is trained
    evaluated = {row.event.version for row in rows if isinstance(row.event, e.Evaluated)}
    assert (">not evaluated yet<" in text) is (not evaluated)
    assert (">before training<" in text) is (evaluated == {0})


@pytest.mark.parametrize("outcome", ["interrupted", "failed"])
def test_an_early_end_says_why(made: EditableRun, tmp_path: Path, outcome: str) -> None:
    end = Row(1.5, e.Tick(), [e.Stop(outcome, "lane 0 <does> not come up")])  # type: ignore[arg-type]
    text = own_text(write_report(part_of(made, [*made.rows[:60], end]).write(tmp_path / "run")))
    assert f'<span class="badge {outcome}">{outcome}</span>' in text
    assert "It stopped early: lane 0 &lt;does&gt; not come up." in text


def test_text_of_the_run_cannot_become_markup(made: EditableRun, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    key = (0, max(attempt for t, attempt in made.payloads if t == 0))
    payloads = made.payloads | {key: msgspec.structs.replace(made.payloads[key], text=evil)}
    rows = [*made.rows[:-1], Row(made.rows[-2].now, e.LaneLost(0, evil), []), made.rows[-1]]
    changed = EditableRun(made.settings, rows, payloads, made.rewards, made.prompt_ids, {"created": evil})
    text = own_text(write_report(changed.write(tmp_path / "run")))
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert(1)") == 2


def test_a_place_that_cannot_be_written(made: EditableRun, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        write_report(made.write(tmp_path / "run"), tmp_path / "missing" / "page.html")


# -- in a browser ----------------------------------------------------------------------------------------------


def browse(page: Path, scratch: Path, *options: str) -> tuple[str, list[str]]:
    """What a headless browser writes on standard output, and what the page's console said.

    Chromium with a virtual clock stands still for ever once in some hundred starts; then another one is asked.
    """
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--enable-logging=stderr", "--v=0", "--window-size=1400,4800", "--virtual-time-budget=15000"),
        f"--user-data-dir={scratch}",
        *options,
        page.as_uri(),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except subprocess.TimeoutExpired:
        shutil.rmtree(scratch, ignore_errors=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


PROBE = """<script>
const wait = setInterval(async () => {
  if (!document.documentElement.dataset.drawn) return;
  clearInterval(wait);
  for (const button of document.querySelectorAll("#timeline-bar button")) button.click();
  await Plotly.relayout("timeline", { "xaxis.range[0]": 1.0, "xaxis.range[1]": 1.5 });
  const said = document.getElementById("timeline-output").textContent;
  const plots = [...document.querySelectorAll(".plot")];
  const drawn = plots.filter((p) => p.querySelector(".main-svg")).length;
  document.body.innerHTML = `<p id="probe">${plots.length} plots, ${drawn} drawn, ${said}</p>`;
}, 50);
</script>"""


@needs_browser
def test_every_figure_is_drawn_without_an_error(made: EditableRun, tmp_path: Path) -> None:
    page = write_report(made.write(tmp_path / "run"))
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    dom, console = browse(page, tmp_path / "profile", "--dump-dom")
    assert console == []
    assert re.search(r'<html[^>]* data-errors="0"', dom)
    assert re.search(rf'<html[^>]* data-drawn="{FIGURES}"', dom)
    assert f"{FIGURES} plots, {FIGURES} drawn, 0.5 s shown; slots busy" in dom


TILES = """<script>
const values = [...document.querySelectorAll(".tile .value")];
const room = () => values.map((value) => {
  const inside = document.createRange();
  inside.selectNodeContents(value);
  const tile = value.closest(".tile");
  const padding = parseFloat(getComputedStyle(tile).paddingRight);
  return tile.getBoundingClientRect().right - padding - inside.getBoundingClientRect().right;
});
const lines = () => Math.max(...values.map((value) => value.getClientRects().length && Math.round(
  value.getBoundingClientRect().height / parseFloat(getComputedStyle(value).lineHeight))));
const seen = [];
for (const text of [null, "19.1 → 21.3 %", "100.0 → 100.0 %"]) {
  if (text) for (const value of values) value.textContent = text;
  seen.push(`${Math.min(...room()).toFixed(1)} px, ${lines()} lines`);
}
document.body.innerHTML = `<p id="probe">${values.length} tiles: ${seen.join("; ")}</p>`;
</script>"""


@needs_browser
@pytest.mark.parametrize("width", [1300, 1000, 640])
def test_the_number_of_a_tile_keeps_its_distance_from_the_border(made: EditableRun, tmp_path: Path, width: int) -> None:
    page = write_report(made.write(tmp_path / "run"))
    text = page.read_text(encoding="utf-8").replace(get_plotlyjs(), "")
    page.write_text(text.replace("</body>", f"{TILES}</body>"), encoding="utf-8")
    dom, _ = browse(page, tmp_path / "profile", f"--window-size={width},2400", "--dump-dom")
    [told] = re.findall(r"6 tiles: ([^<]*)</p>", dom)
    own, usual, widest = ((float(room), int(lines)) for room, lines in re.findall(r"(-?[\d.]+) px, (\d+) lines", told))
    for room, lines in (own, usual):
        assert room >= -0.5, "inside the padding"
        assert lines == 1
    assert widest[0] >= -0.5


@needs_browser
def test_a_run_at_its_very_beginning_is_drawn_without_an_error(made: EditableRun, tmp_path: Path) -> None:
    page = write_report(part_of(made, made.rows[:40]).write(tmp_path / "run"))
    dom, console = browse(page, tmp_path / "profile", "--dump-dom")
    assert console == []
    drawn = re.search(r'<html[^>]* data-drawn="(\d+)"', dom)
    assert drawn
    assert int(drawn[1]) == dom.count('class="plot ') > 0


@needs_browser
def test_an_error_on_the_page_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<!doctype html><script>throw new Error('negative control')</script>")
    _, console = browse(page, tmp_path / "profile", "--dump-dom")
    assert any("negative control" in line for line in console)


@needs_browser
def test_the_picture_shows_the_timeline_in_the_colours_of_the_versions(made: EditableRun, tmp_path: Path) -> None:
    page = write_report(made.write(tmp_path / "run"))
    picture = tmp_path / "page.png"
    browse(page, tmp_path / "profile", f"--screenshot={picture}")
    image = Image.open(picture).convert("RGB")
    assert image.size == (1400, 4800)
    seen = {colour: count for count, colour in image.getcolors(1 << 24)}
    for colour in VERSION_CYCLE:
        rgb = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
        assert seen.get(rgb, 0) > 500, f"{colour} is hardly to be seen"
