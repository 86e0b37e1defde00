"""Two workers share the tests; whole runs, which take all cores by themselves, go one after another on one of them."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group("whole runs"))
