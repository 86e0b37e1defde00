"""One cache of prepared policies for all tests of a session, empty at its start and shared by its workers."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def policy_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["XDG_CACHE_HOME"] = str(session / "cache")
