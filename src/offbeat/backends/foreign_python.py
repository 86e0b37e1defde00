"""Runs a module of this offbeat in the Python of another environment, as its main module.

    OTHER/bin/python -P foreign_python.py offbeat.backends.rollout_process ARGUMENTS

Only the package itself is taken along: with its whole site-packages on the path, this environment's libraries would
stand before the other's own. Compiled kernels are kept in the other environment: two versions of numba that shared a
directory would throw each other's away. Imports nothing but the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    root = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "offbeat", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["offbeat"] = package
    spec.loader.exec_module(package)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(sys.prefix) / "offbeat-kernels"))
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
