"""The numbers of a run for W&B and trackio, sent while it runs: the instruments of TensorBoard under the same tags.

*Derived, never doubled*: the step is the version. Each session tells all that the run log holds; W&B knows the run by
an id that stays and drops steps it has, trackio gets a run of its own for each session. A library that fails ends its
telling, not the run; what it prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from offbeat import events as e
from offbeat.errors import SettingsError
from offbeat.report.tensorboard import event_scalars
from offbeat.settings import Settings

Library = Literal["wandb", "trackio"]
LIBRARIES: tuple[Library, ...] = ("wandb", "trackio")


def wanted(settings: Settings) -> list[Library]:
    """The libraries that a run's settings name. Raises SettingsError for one that is not installed."""
    chosen = [library for library in LIBRARIES if getattr(settings.run, library)]
    for library in chosen:
        if importlib.util.find_spec(library) is None:
            raise SettingsError(
                f"run.{library} = true: {library} is not installed; run pip install 'offbeat[{library}]', or set it to"
                " false"
            )
    return chosen


class Tracker:
    """`saw` is the observer; `recorded` are (event, run time in seconds) of the log so far. Close it at the end."""

    def __init__(
        self,
        library: Library,
        run_directory: Path,
        settings: Settings,
        identity: tuple[str, int],
        recorded: Iterable[tuple[e.Event, float]],
        complain: Callable[[str], None],
    ) -> None:
        """`identity`: when the run was created, and the number of this session."""
        self._library = library
        self._complain = complain
        self._module: Any = None
        self._guarded(lambda: self._begin(run_directory, settings, *identity))
        for event, now in recorded:
            self.saw(event, now, ())

    def saw(self, event: e.Event, now: float, _commands: Sequence[e.Command]) -> None:
        """Observe one event of the main loop; `now` is run time in seconds."""
        step, scalars = event_scalars(event)
        if self._module is None or not scalars:
            return
        finite = {tag: value for tag, value in scalars.items() if math.isfinite(value)} | {"run/seconds": now}
        self._guarded(lambda: self._module.log(finite, step=step))

    def close(self) -> None:
        if self._module is not None:
            self._guarded(lambda: self._module.finish())
            self._module = None

    def _begin(self, run_directory: Path, settings: Settings, created: str, session: int) -> None:
        module = importlib.import_module(self._library)
        name, config = run_directory.resolve().name, settings.model_dump(mode="json")
        if self._library == "wandb":
            run_id = hashlib.blake2b(f"{created}/{name}".encode(), digest_size=8).hexdigest()
            quiet = module.Settings(console="off", silent=True)
            module.init(
                project=settings.run.project, name=name, id=run_id, resume="allow", dir=str(run_directory),
                config=config, settings=quiet,
            )  # fmt: skip
        else:
            own = name if session == 0 else f"{name}-session-{session}"
            module.init(project=settings.run.project, name=own, config=config)
        self._module = module

    def _guarded(self, deed: Callable[[], Any]) -> None:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                deed()
        except Exception as error:  # a library that talks to a service may raise anything
            words = (str(error).splitlines() or [type(error).__name__])[0]
            self._complain(f"{self._library}: {words}; the run goes on without it")
            self._module = None
