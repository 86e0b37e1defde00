"""For all tests of a session: one cache of prepared policies, empty at its start and shared by its workers, libraries
loaded once for all the runs that tests start, and one Ray cluster for those that ask for it."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from offbeat.backends.forking import shared_libraries
from offbeat.garbage import SELDOM
from offbeat.report import style
from tests.clusters import cluster

__all__ = ["cluster"]
# One test worker more than cores, as there is always one that waits (for Ray, for a killed process): threads that wait
# for each other by spinning would take their time from them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
gc.set_threshold(*SELDOM)


@pytest.fixture(scope="session", autouse=True)
def policy_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["XDG_CACHE_HOME"] = str(session / "cache")


@pytest.fixture(scope="session", autouse=True)
def every_figure_that_a_test_draws_is_one_to_plotly() -> Iterator[None]:
    encoded = style.encoded

    def checked(figure: dict[str, Any]) -> str:
        from plotly.graph_objects import Figure

        Figure(json.loads(text := encoded(figure)))  # it refuses unknown keys and values
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "encoded", checked)
        yield


_libraries = ExitStack()


@pytest.hookimpl(tryfirst=True)  # before the workers are started, which inherit the environment
def pytest_sessionstart(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ and not session.config.option.collectonly:
        os.environ.update(_libraries.enter_context(shared_libraries()))


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of modules and tests need not be looked through again and again


def pytest_unconfigure() -> None:
    _libraries.close()
