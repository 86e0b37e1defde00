"""Progress of a run on a terminal: an observer of the main loop, called once per event.

*Cheap*: an event costs a few microseconds; the picture is drawn at most four times a second, and
where the console is no terminal one plain line comes every ten seconds. What is shown is told by `Tally`.
Writes to the console it is given (standard error) only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from offbeat import events as e
from offbeat.report.tally import Tally, clock
from offbeat.settings import Settings

REDRAW_SECONDS = 0.25
LINE_SECONDS = 10.0


def _versions(versions: list[int]) -> str:
    """[] -> -, [3] -> 3, [3, 4, 5] -> 3-5, [3, 5] -> 3, 5"""
    if len(versions) > 1 and versions[-1] - versions[0] == len(versions) - 1:
        return f"{versions[0]}-{versions[-1]}"
    return ", ".join(map(str, versions)) or "-"


def cells(tally: Tally) -> dict[str, str]:
    """What is shown, name by name; what is not known yet is left out."""
    found: dict[str, str] = {}
    if tally.reward is not None:
        found["reward"] = f"{tally.reward:.3f}"
    if tally.evaluated is not None:
        found["exact match"] = f"{tally.evaluated.exact_match_greedy:.3f} (version {tally.evaluated.version})"
    if tally.marked is not None:
        found["marks"] = f"{tally.marked.done}/{tally.marked.marks} (version {tally.marked.version})"
    if tally.trajectories_per_second is not None:
        found["trajectories/s"] = f"{tally.trajectories_per_second:.1f}"
    found["versions alive"] = _versions(tally.live_versions)
    if tally.staleness_mean is not None:
        of = "" if tally.bound is None else f" of {tally.bound}"
        found["staleness"] = f"mean {tally.staleness_mean:.2f} max {tally.staleness_max}{of}"
    busy, slots = tally.slots
    found["slots busy"] = f"{busy}/{slots}"
    if tally.seconds_left is not None:
        found["ETA"] = clock(tally.seconds_left)
    if tally.levers:
        found["autopilot"] = ", ".join(f"{lever} {value:g}" for lever, value in tally.levers.items())
    if tally.restarts:
        found["restarts"] = str(tally.restarts)
    if tally.quarantined:
        found["quarantined"] = str(tally.quarantined)
    return found


class Watch:
    """`saw` is the observer; `preparing` shows what happens before the loop. Close it, or use it with `with`."""

    def __init__(self, settings: Settings, console: Console, seconds: Callable[[], float] = time.monotonic) -> None:
        """`seconds` is the wall clock that limits how often something is drawn."""
        self._console = console
        self._seconds = seconds
        self._tally = Tally(settings)
        self._live: Live | None = None
        self._due = float("-inf") if console.is_terminal else seconds() + LINE_SECONDS
        self._preparing: tuple[str, float] | None = None
        self._drawn = True
        self._closed = False

    def preparing(self, note: str, share: float) -> None:
        """Before the loop: what is being prepared, and how much of it is done, in [0, 1]."""
        fresh = self._preparing is None or self._preparing[0] != note
        self._preparing = (note, min(1.0, max(0.0, share)))
        self._drawn = False
        if fresh or self._seconds() >= self._due:
            self._draw()

    def saw(self, event: e.Event, now: float, commands: Sequence[e.Command]) -> None:
        """Observe one event of the main loop; `now` is run time in seconds."""
        self._tally.take(event, now, commands)
        self._preparing = None
        self._drawn = False
        if self._seconds() >= self._due:
            self._draw()

    def close(self) -> None:
        """Show the last state and leave the terminal as it was. May be called twice."""
        if self._closed:
            return
        if not self._drawn:
            self._draw()
        self._closed = True
        if self._live is not None:
            self._live.stop()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- drawing ---------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._closed:
            return
        self._drawn = True
        if not self._console.is_terminal:
            self._console.print(self._line(), soft_wrap=True, highlight=False, markup=False)
            self._due = self._seconds() + LINE_SECONDS
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)
            self._live.start()
        self._live.update(self._picture(), refresh=True)
        self._due = self._seconds() + REDRAW_SECONDS

    def _line(self) -> str:
        if self._preparing is not None:
            return f"{self._preparing[0]} {self._preparing[1]:.0%}"
        tally = self._tally
        shown = "  ".join(f"{name} {value}" for name, value in cells(tally).items())
        return f"{clock(tally.now)}  iteration {tally.version}/{tally.goal}  {shown}"

    def _picture(self) -> Table:
        picture = Table.grid(padding=(0, 2))
        if self._preparing is not None:
            note, share = self._preparing
            picture.add_row(Text(note), ProgressBar(total=1.0, completed=share, width=40), Text(f"{share:.0%}"))
            return picture
        tally = self._tally
        bar = ProgressBar(total=tally.goal, completed=tally.version, width=40)
        head = Table.grid(padding=(0, 2))
        head.add_row(Text(f"iteration {tally.version}/{tally.goal}", style="bold"), bar, Text(clock(tally.now)))
        body = Columns(
            [Text.assemble((f"{name} ", "dim"), value) for name, value in cells(tally).items()], padding=(0, 3)
        )
        picture.add_row(head)
        picture.add_row(body)
        if tally.last_words:
            picture.add_row(Text(tally.last_words, style="yellow", overflow="ellipsis", no_wrap=True))
        return picture
