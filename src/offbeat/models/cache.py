"""Directories that are costly to make, kept under a key: made once, used by every later run.

Invariant: an entry is seen whole or not at all. It is written beside its place and renamed into it, and a digest
file lists the SHA-256 of each of its files; an entry that differs from its digests is made anew. A lock file makes
a second process wait for the first one's work; the kernel releases it when a process dies.
Knows neither models nor tasks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from offbeat.errors import SettingsError
from offbeat.locks import FOR_EVER, hold

DIGESTS = "digests.sha256"


def cached(root: Path, key: str, make: Callable[[Path], None], waiting: Callable[[], None]) -> Path:
    """The directory `root / key`, made by `make(empty_directory)` where it is absent or damaged.

    `waiting` is called when another process is making it. What `make` raises passes through and leaves no entry.
    Raises SettingsError where `root` cannot be written, RunDirectoryError where it cannot be locked.
    """
    entry = root / key
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{key}.lock", waiting):
            if not intact(entry):
                _replace(root, key, make)
    except PermissionError as error:
        raise SettingsError(
            f"cache directory {root}: {error.strerror or error}; make it writable or set XDG_CACHE_HOME"
        ) from None
    return entry


def intact(entry: Path) -> bool:
    """Whether an entry's files are exactly those its digest file lists."""
    try:
        listed = (entry / DIGESTS).read_text(encoding="utf-8")
        return listed == _digests(entry)
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return False


def _replace(root: Path, key: str, make: Callable[[Path], None]) -> None:
    """Make the entry; the caller holds the lock, so what another process left half-made is nobody's."""
    for left in root.glob(f"{key}.part-*"):
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{key}.part-", dir=root))
    try:
        part.chmod(0o755)
        make(part)
        (part / DIGESTS).write_text(_digests(part), encoding="utf-8")
        entry = root / key
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
        part.rename(entry)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _digests(directory: Path) -> str:
    """One line `sha256  name` for each file below `directory`, in the order of names, as `sha256sum` prints them."""
    files = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    lines = (f"{_sha256(directory / name)}  {name}\n" for name in files if name != DIGESTS)
    return "".join(lines)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _locked(file: Path, waiting: Callable[[], None]) -> Iterator[None]:
    held = hold(file, f"cache directory {file.parent}", FOR_EVER, waiting)
    try:
        yield
    finally:
        os.close(held)
