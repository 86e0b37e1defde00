"""What the watch shows is what a slow reader of the whole log finds, and it draws rarely, to its console only."""

from __future__ import annotations

import io
from statistics import fmean

import pytest
from rich.console import Console

from offbeat import events as e
from offbeat.report import watch as watch_module
from offbeat.report.tally import WINDOW, Tally
from offbeat.report.watch import Watch, cells
from tests.report.simulated_run import EditableRun, simulated_run, small_settings


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def made() -> EditableRun:
    return simulated_run()


def told(made: EditableRun, length: int | None = None) -> Tally:
    tally = Tally(made.settings)
    for row in made.rows[:length]:
        tally.take(row.event, row.now, row.commands)
    return tally


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=100, color_system=None), out


# -- the fold --------------------------------------------------------------------------------------------------


def test_counts_agree_with_the_whole_log(made: EditableRun) -> None:
    for length in (*range(0, len(made.rows), 37), len(made.rows)):
        rows, tally = made.rows[:length], told(made, length)
        commands = [c for row in rows for c in row.commands]
        versions = {c.group_id: c.version for c in commands if isinstance(c, e.Generate)}
        trained = [row.event for row in rows if isinstance(row.event, e.Trained)]
        trains = {c.iteration: c for c in commands if isinstance(c, e.Train) and c.iteration < len(trained)}
        stale = [n - versions[g] for n, train in trains.items() for g in train.group_ids]
        assert tally.version == len(trained)
        assert tally.consumed == 16 * len(trained)
        assert tally.staleness_mean == (pytest.approx(fmean(stale)) if stale else None)
        assert tally.staleness_max == max(stale, default=0)
        assert tally.restarts == sum(a > 0 for c in commands if isinstance(c, e.Generate) for a in c.attempts)
        assert tally.quarantined == sum(isinstance(c, e.Quarantine) for c in commands)
        rewards = [event.report.reward_mean for event in trained][-WINDOW:]
        assert tally.reward == (pytest.approx(fmean(rewards)) if rewards else None)
    assert tally.evaluated is not None
    assert tally.evaluated.version == 12
    assert tally.restarts > 0
    assert tally.last_words == "finished: 12 iterations done"


def test_memory_is_bounded_by_the_groups_under_way(made: EditableRun) -> None:
    assert told(made)._group_version == {}


def steady(tally: Tally, iterations: int, every: float = 2.0) -> None:
    """Groups 0, 1, 2... of version 0, one batch of four every `every` seconds, from second 10 on."""
    report = next(row.event for row in simulated_run().rows if isinstance(row.event, e.Trained)).report
    for iteration in range(iterations):
        groups = tuple(range(4 * iteration, 4 * iteration + 4))
        start = 10.0 + every * iteration
        commands: list[e.Command] = [e.Generate(0, 0, g, g, (4 * g,), (0,)) for g in groups]
        tally.take(e.Tick(), start, [*commands, e.Train(iteration, groups, ((0,),) * 4)])
        tally.take(e.Trained(iteration + 1, "", report, start, start + every), start + every, [])


def test_pace_and_time_left() -> None:
    tally = Tally(small_settings(learner__iterations=100))
    assert tally.trajectories_per_second is None
    assert tally.seconds_left is None
    steady(tally, 40)
    assert tally.trajectories_per_second == pytest.approx(16 / 2.0)
    assert tally.seconds_left == pytest.approx(60 * 2.0)
    tally.take(e.Tick(), tally.now + 1.5, [])
    assert tally.seconds_left == pytest.approx(60 * 2.0 - 1.5)


def test_time_limit_ends_it_earlier() -> None:
    tally = Tally(small_settings(learner__iterations=100, run__time_limit_seconds=50))
    steady(tally, 10)
    assert tally.now == 30
    assert tally.seconds_left == pytest.approx(20)


def test_pace_is_measured_anew_after_a_resume() -> None:
    tally = Tally(small_settings(learner__iterations=100))
    steady(tally, 4)
    tally.take(e.Opened(1), 1000.0, [e.StartLane(0)])
    assert tally.trajectories_per_second is None
    assert tally.version == 4


def test_lanes_come_and_go() -> None:
    tally = Tally(small_settings())
    tally.take(e.LaneReady(0, 10), 0.0, [])
    tally.take(e.LaneReady(1, 10), 0.0, [])
    tally.take(e.Progress(0, (), (), 7, 1), 1.0, [])
    tally.take(e.Progress(1, (), (), 3, 1), 1.0, [])
    for lane, version in ((0, 3), (0, 4), (1, 5)):
        tally.take(e.VersionLoaded(lane, version), 1.0, [])
    assert tally.slots == (10, 20)
    assert tally.live_versions == [3, 4, 5]
    tally.take(e.Tick(), 2.0, [e.UnloadVersion(0, 3)])
    assert tally.live_versions == [4, 5]
    tally.take(e.LaneLost(1, "killed"), 3.0, [])
    assert tally.slots == (7, 10)
    assert tally.live_versions == [4]
    assert "lane 1 was lost: killed" in tally.last_words
    tally.take(e.Opened(1), 4.0, [])
    assert tally.slots == (0, 0)
    assert tally.live_versions == []
    assert tally.last_words == ""


def test_cells(made: EditableRun) -> None:
    assert cells(Tally(small_settings())) == {"versions alive": "-", "slots busy": "0/0"}
    shown = cells(told(made))
    assert list(shown) == [
        "reward", "exact match", "trajectories/s", "versions alive", "staleness", "slots busy", "ETA", "restarts",
        "quarantined",
    ]  # fmt: skip
    assert shown["exact match"].endswith("(version 12)")
    assert shown["quarantined"] == "1"
    assert [watch_module._versions(v) for v in ([], [3], [3, 4, 5], [3, 5])] == ["-", "3", "3-5", "3, 5"]


# -- drawing ---------------------------------------------------------------------------------------------------


def test_plain_lines_every_ten_seconds(made: EditableRun) -> None:
    clock, (target, out) = Clock(), console(terminal=False)
    with Watch(made.settings, target, clock) as watch:
        for row in made.rows:
            clock.now += 0.1
            watch.saw(row.event, row.now, row.commands)
    lines = out.getvalue().splitlines()
    assert len(lines) == int(0.1 * len(made.rows) / 10) + 1
    assert "iteration 12/12" in lines[-1]
    assert "\x1b" not in out.getvalue()
    assert all("reward" in line for line in lines[1:])


def test_redrawn_at_most_four_times_a_second(made: EditableRun, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, (target, out) = Clock(), console(terminal=True)
    drawn: list[float] = []
    watch = Watch(made.settings, target, clock)
    picture = watch._picture
    monkeypatch.setattr(watch, "_picture", lambda: (drawn.append(clock.now), picture())[1])
    for row in made.rows:
        clock.now += 0.01
        watch.saw(row.event, row.now, row.commands)
    watch.close()
    assert 10 < len(drawn) <= 4 * clock.now + 2
    assert "iteration 12/12" in out.getvalue()
    assert "finished: 12 iterations done" in out.getvalue()


def test_preparing_comes_before_the_loop() -> None:
    clock, (target, out) = Clock(), console(terminal=False)
    made = simulated_run()
    with Watch(made.settings, target, clock) as watch:
        for step in range(100):
            clock.now += 0.3
            watch.preparing("warm start", step / 99)
        watch.preparing("saving", 2.0)
        watch.saw(made.rows[0].event, 0.0, made.rows[0].commands)
    lines = out.getvalue().splitlines()
    assert lines[0] == "warm start 0%"
    assert lines[-2] == "saving 100%"
    assert lines[-1].startswith("0 s  iteration 0/12")
    assert len(lines) <= 1 + 3 + 2


def test_preparing_on_a_terminal() -> None:
    target, out = console(terminal=True)
    with Watch(small_settings(), target) as watch:
        watch.preparing("warm start", 0.5)
    assert "warm start" in out.getvalue()
    assert "50%" in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_closing(terminal: bool, made: EditableRun) -> None:
    target, out = console(terminal)
    watch = Watch(made.settings, target)
    watch.close()
    assert out.getvalue() == ""
    watch = Watch(made.settings, target)
    watch.saw(e.Opened(0), 0.0, [])
    watch.close()
    shown = out.getvalue()
    watch.close()
    watch.saw(e.Tick(), 1.0, [])
    assert out.getvalue() == shown


def test_closed_when_the_run_fails(made: EditableRun) -> None:
    target, out = console(terminal=True)

    def fail() -> None:
        with Watch(made.settings, target) as watch:
            watch.saw(e.Opened(0), 0.0, [])
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_nothing_goes_to_standard_output(made: EditableRun, capfd: pytest.CaptureFixture[str]) -> None:
    with Watch(made.settings, Console(stderr=True, force_terminal=True)) as watch:
        for row in made.rows[:20]:
            watch.saw(row.event, row.now, row.commands)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "iteration" in captured.err


def test_markup_in_reasons_is_shown_as_it_is(made: EditableRun) -> None:
    target, out = console(terminal=True)
    with Watch(made.settings, target) as watch:
        watch.saw(e.LaneLost(0, "[/red] bad [bold]"), 0.0, [])
    assert "[/red] bad [bold]" in out.getvalue()


def test_marks_are_shown_while_an_evaluation_is_under_way(made: EditableRun) -> None:
    tally = Tally(made.settings)
    assert "marks" not in cells(tally)
    tally.take(e.Marked(3, 300, 1024), 1.0, [])
    assert cells(tally)["marks"] == "300/1024 (version 3)"
    tally.take(e.Evaluated(3, 512, 0.5, 0.4), 2.0, [])
    assert "marks" not in cells(tally)


def test_levers_of_the_autopilot_are_shown_from_the_first_that_moves(made: EditableRun) -> None:
    tally = Tally(made.settings)
    assert "autopilot" not in cells(tally)
    tally.take(e.Tick(), 1.0, [e.Steer(8, "learning rate", 1.0, 0.25, 3.1, "staleness pressure 3.10 above 0.8")])
    tally.take(e.Tick(), 2.0, [e.Steer(24, "staleness", 4.0, 2.0, 1.0, "again")])
    assert cells(tally)["autopilot"] == "learning rate 0.25, staleness 2"
    assert tally.last_words == "autopilot: again"
