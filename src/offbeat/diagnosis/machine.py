"""Facts of the machine and the installation, read without importing anything heavy and without changing anything.

What cannot be found out is None. This file judges nothing: `offbeat.diagnosis.doctor` does.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import sqlite3
import sys
import tempfile
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

from offbeat import __version__
from offbeat.backends.vllm.interpreter import look_for_vllm
from offbeat.diagnosis.servers import ANSWER_SECONDS, Answer, ask_ray, ask_vllm
from offbeat.settings import RolloutSettings

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DEFAULT_PORTS = {6379: "ray", 8265: "ray", 8000: "vllm"}
"""Where the servers of optional parts listen unless told otherwise."""
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*>=\s*([0-9.]+)\s*$")


class Package(NamedTuple):
    """A library offbeat needs: the least version that will do and the one installed (None: none)."""

    name: str
    least: str
    found: str | None


class Machine(NamedTuple):
    """Bytes, counts and seconds; directories that were tried are named. `vllm` is the version that `vllm_python` says
    it has; `vllm_problem` is empty where it has one, and where nobody named it and nothing lies there."""

    offbeat: str
    python: tuple[int, int, int]
    system: str
    packages: tuple[Package, ...]
    cores: int
    cores_allowed: float | None
    threads_wanted: str | None
    memory_bytes: int | None
    gpus: int
    torch_cuda: str | None
    shared_memory_bytes: int | None
    here: str
    free_bytes: int
    directory_problem: str
    scratch_bytes: int
    descriptors: int
    processes: int
    loopback_problem: str
    ports_taken: tuple[int, ...]
    browser: str | None
    ray: str | None
    ray_answer: Answer | None
    vllm: str | None
    vllm_python: str
    vllm_problem: str
    vllm_answer: Answer | None
    cache: str
    cache_bytes: int
    cache_problem: str


def look_around(here: Path, ray: str | None = None, vllm: str | None = None) -> Machine:
    """`here` is where runs would lie; `ray` (auto or host:port) and `vllm` (URL) are servers to ask, without values
    those that the environment names. vLLM's Python is looked for where a run without settings of its own does."""
    cache = user_cache_path("offbeat") / "policies"
    python = look_for_vllm(RolloutSettings())
    return Machine(
        offbeat=__version__,
        python=sys.version_info[:3],
        system=platform.system(),
        packages=tuple(_packages()),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cores_allowed=_cores_allowed(),
        threads_wanted=os.environ.get("OMP_NUM_THREADS"),
        memory_bytes=_memory_bytes(),
        gpus=sum(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev")) if Path("/dev").is_dir() else 0,
        torch_cuda=_torch_cuda(),
        shared_memory_bytes=_free(Path("/dev/shm")),
        here=str(here.absolute()),
        free_bytes=_free(here) or 0,
        directory_problem=_directory_problem(here),
        scratch_bytes=_free(Path(tempfile.gettempdir())) or 0,
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0] if hasattr(resource, "RLIMIT_NPROC") else -1,
        loopback_problem=_loopback_problem(),
        ports_taken=tuple(port for port in DEFAULT_PORTS if _taken(port)),
        browser=next(filter(None, map(shutil.which, BROWSERS)), None),
        ray=_installed("ray"),
        ray_answer=ask_ray(ray),
        vllm=python.version or None,
        vllm_python=python.python,
        vllm_problem=f"{python.key}: {python.problem}" if python.problem and python.wanted else "",
        vllm_answer=ask_vllm(vllm),
        cache=str(cache),
        cache_bytes=sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) if cache.is_dir() else 0,
        cache_problem=_cache_problem(cache),
    )


# -- installation ----------------------------------------------------------------------------------------------


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> list[Package]:
    """What the installed offbeat says it needs, extras left out."""
    try:
        wanted = metadata.requires("offbeat") or []
    except metadata.PackageNotFoundError:
        return []
    found = (_REQUIREMENT.match(line) for line in wanted)
    return [Package(match[1], match[2], _installed(match[1])) for match in found if match]


def _torch_cuda() -> str | None:
    """The CUDA version torch was built for, read from its files; empty for a build without."""
    spec = importlib.util.find_spec("torch")
    try:
        text = (Path(spec.origin).parent / "version.py").read_text() if spec and spec.origin else ""
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*(?:'([^']*)'|\"([^\"]*)\"|None)", text, re.MULTILINE)
    return (match[1] or match[2] or "") if match else None


# -- machine ---------------------------------------------------------------------------------------------------


def _cores_allowed() -> float | None:
    """Cores a control group allows, where it limits them."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _memory_bytes() -> int | None:
    """What is free for a new process, within the control group's limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        [free] = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        return None
    try:
        group = Path("/sys/fs/cgroup")
        left = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
        return min(free, left)
    except (OSError, ValueError):
        return free


def _free(directory: Path) -> int | None:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _directory_problem(here: Path) -> str:
    """Why no run can lie here: it needs files, locks, and SQLite's write-ahead log."""
    try:
        with tempfile.TemporaryDirectory(prefix=".offbeat-doctor-", dir=here) as scratch:
            with open(Path(scratch) / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with closing(sqlite3.connect(Path(scratch) / "log.sqlite")) as log:
                [mode] = log.execute("PRAGMA journal_mode=WAL").fetchone()
                log.execute("CREATE TABLE t(x)")
            return "" if mode == "wal" else "its file system cannot hold a write-ahead log"
    except (OSError, sqlite3.Error) as error:
        return str(getattr(error, "strerror", None) or error)


def _cache_problem(cache: Path) -> str:
    place = next(path for path in (cache, *cache.parents) if path.exists())
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} is not writable"


# -- network ---------------------------------------------------------------------------------------------------


def _loopback_problem() -> str:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _taken(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return True
    return False
