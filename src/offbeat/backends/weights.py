"""Where published versions lie and how one is proved to be what it claims.

    RUN/versions/000012/  model.safetensors  optimizer.safetensors  manifest.json

A version's directory appears whole or not at all (written aside, renamed), whichever process ends. *One-behind
invariant*: a version is announced when the one before it is on the disk, so a machine that crashes leaves one to go on
from (`live.rebuild`). *Publish invariant*: before the first token of a version is sampled, the engine that samples it
has checked the file's SHA-256 against the log's and its own log-probs of a fixed prompt (the canary) against the
learner's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from offbeat.durable import file_digest, sync, sync_tree
from offbeat.errors import WeightsError

WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
CANARY_TOLERANCE = 1e-3
COARSE_TOLERANCE = 0.5
"""For an engine in bfloat16: tells another model or a head left behind, not one publish from the next."""


class Canary(msgspec.Struct, frozen=True):
    """A fixed prompt [P] and response [L] with the learner's log-probs [L] of it under the published weights."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    target_logprobs: tuple[float, ...]


class Manifest(msgspec.Struct, frozen=True):
    """`version`, the SHA-256 of its model.safetensors and that of every file beside it, by its path there."""

    version: int
    digest: str
    canary: Canary
    others: dict[str, str] = {}


def version_directory(run_directory: Path, version: int) -> Path:
    return run_directory / "versions" / f"{version:06d}"


def weights_file(run_directory: Path, version: int) -> Path:
    return version_directory(run_directory, version) / WEIGHTS


def publish(run_directory: Path, version: int, save: Callable[[Path], str], canary: Callable[[], Canary]) -> Manifest:
    """Write a version: `save(directory)` writes the files and returns the weights' digest. Atomic, and
    on its way to the disk (`Syncing`)."""
    final = version_directory(run_directory, version)
    aside = final.with_name(f".{final.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    digest = save(aside)
    files = sorted(file for file in aside.rglob("*") if file.is_file() and file != aside / WEIGHTS)
    others = {file.relative_to(aside).as_posix(): file_digest(file) for file in files}
    manifest = Manifest(version, digest, canary(), others)
    (aside / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    shutil.rmtree(final, ignore_errors=True)
    os.rename(aside, final)
    return manifest


def shed_optimizer(run_directory: Path, version: int) -> None:
    """Leave of a version what it is sampled and judged by: weights and manifest."""
    directory = version_directory(run_directory, version)
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in (WEIGHTS, MANIFEST):
            path.unlink(missing_ok=True)


class Syncing:
    """Brings published versions to the disk on a thread, while the next batch is learned."""

    def __init__(self, run_directory: Path) -> None:
        self._run_directory = run_directory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="syncing")
        self._last: Future[None] | None = None

    def begin(self, version: int) -> None:
        directory = version_directory(self._run_directory, version)

        def bring() -> None:
            sync_tree(directory)
            sync(directory.parent)

        self._last = self._thread.submit(bring)

    def finish(self) -> None:
        """Wait until what was begun is on the disk. Raises OSError where it does not get there."""
        if self._last is not None:
            self._last.result()


def read_manifest(run_directory: Path, version: int, digest: str) -> Manifest:
    """The manifest of a version whose weights have `digest`. Raises WeightsError unless all three agree."""
    file = version_directory(run_directory, version) / MANIFEST
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise WeightsError(f"version {version}: no usable manifest at {file} ({error})") from None
    found = file_digest(weights_file(run_directory, version))
    if not manifest.version == version or not manifest.digest == found == digest:
        raise WeightsError(
            f"version {version}: announced {digest[:12]}, manifest of version {manifest.version} says"
            f" {manifest.digest[:12]}, the file is {found[:12]}"
        )
    return manifest


def check_version(run_directory: Path, version: int, digest: str) -> None:
    """Raise WeightsError unless every file of a version is there and what was published: to be asked of the version
    that training goes on from (older ones may have shed their optimizer state)."""
    manifest = read_manifest(run_directory, version, digest)
    for name, announced in manifest.others.items():
        file = version_directory(run_directory, version) / name
        if file_digest(file) != announced:
            raise WeightsError(f"{file} is damaged: its SHA-256 is not the published one")


def version_damage(run_directory: Path, version: int, digest: str) -> str:
    """Why training cannot go on from a version, in words; empty where it can: weights, and an optimizer state."""
    try:
        check_version(run_directory, version, digest)
    except WeightsError as error:
        return str(error)
    return ""


def check_canary(
    manifest: Manifest,
    score: Callable[[tuple[int, ...], tuple[int, ...]], Iterable[float]],
    tolerance: float = CANARY_TOLERANCE,
) -> None:
    """Raise WeightsError unless `score` gives the canary's log-probs, to `tolerance` nats: the engine serves what was
    published."""
    canary = manifest.canary
    behaviour = list(score(canary.prompt_ids, canary.response_ids))
    error = max((abs(b - t) for b, t in zip(behaviour, canary.target_logprobs, strict=True)), default=0.0)
    if not error <= tolerance:
        raise WeightsError(
            f"version {manifest.version}: the engine's log-probs of the canary differ by {error:.2g} from the"
            " learner's: it does not serve the published weights"
        )
