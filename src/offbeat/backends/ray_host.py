"""A Ray actor with a worker: the very process that the local backend starts, beside the actor that speaks for it.

The worker cannot tell: it reads messages from a socket pair and files from a run directory. A learner's is the run's
own; a lane's is a scratch directory of its node, into which this file puts what a message refers to before it is
delivered (the policy, a version, parcels), out of Ray's object store. *Node-alone invariant*: a lane needs nothing of
the driver's disk. Actor and worker end together. Knows no scheduling and no driver.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import ray
from numpy.typing import NDArray

import offbeat
from offbeat.backends import messages as m
from offbeat.backends.channel import Channel
from offbeat.backends.forking import PLACES, fork_server
from offbeat.backends.local import DEATH_SECONDS, MODULES, end_group, how_it_ended, launch
from offbeat.backends.parcels import parcel_file
from offbeat.backends.scratch import scratch
from offbeat.backends.vllm.interpreter import interpreters
from offbeat.backends.weights import version_directory
from offbeat.backends.worker import environment
from offbeat.settings import settings_from

HEAR_SECONDS = 10.0
GATHER_SECONDS = 0.05
"""Between two answers of a worker that says of responses alone that they are done: a call for each would cost more."""
TO = {"rollout": m.ToRollout, "learner": m.ToLearner}
FROM = {kind: MODULES[kind][1] for kind in TO}
LAST_WORDS = 1 << 14
"""Bytes of what a worker printed that are told when it has ended."""
VERSION_FILES = "manifest.json", "model.safetensors"
"""What a lane needs of a version."""

Files: TypeAlias = Mapping[str, NDArray[np.uint8]]
"""Contents of files by their names."""


class Sender(msgspec.Struct, frozen=True):
    """The driver: its version; its clocks, for times of workers are told in its run time; what to add to an environment
    where libraries are loaded: on its own machine, and on other nodes of Ray's."""

    offbeat_version: str
    boot: str
    wall_minus_monotonic: float
    libraries: dict[str, str] = {}
    on_nodes: dict[str, dict[str, str]] = {}

    @classmethod
    def here(cls) -> Sender:
        boot = Path("/proc/sys/kernel/random/boot_id")
        name = boot.read_text().strip() if boot.exists() else socket.gethostname()
        return cls(offbeat.__version__, name, time.time() - time.monotonic())

    def origin_on(self, other: Sender, origin: float) -> float:
        """The monotonic clock's value on the machine `other` at what is `origin` on this one's: the same on the same
        machine, elsewhere as exact as the machines' wall clocks agree."""
        return origin if other.boot == self.boot else origin + self.wall_minus_monotonic - other.wall_minus_monotonic


class Heard(msgspec.Struct, frozen=True):
    """What a worker said, and its end: None while it goes on, else how, in words, and what it printed last.

    `parcels[i]` refers to what message i leaves behind: contents of parcels by trajectory and attempt. `own_libraries`,
    said once for a worker that found none loaded: Ray's node, and whether it was told of some there.
    """

    frames: list[bytes]
    parcels: dict[int, Any]
    ended: str | None = None
    printed: str = ""
    own_libraries: tuple[str, bool] | None = None


def read_files(directory: Path, names: Sequence[str]) -> Files:
    """Contents as arrays over the page cache: copied once, into the object store."""
    return {name: np.asarray(np.memmap(directory / name, dtype=np.uint8, mode="r")) for name in names}


def place_files(directory: Path, files: Files) -> None:
    """The opposite; the directory is there whole or not at all."""
    aside = Path(tempfile.mkdtemp(dir=directory.parent))
    for name, contents in files.items():
        with open(aside / name, "wb") as file:
            file.write(contents.data)
    shutil.rmtree(directory, ignore_errors=True)
    aside.rename(directory)


class Host:
    """Made a Ray actor by `ray_cluster`. Calls of one concurrency group run one after the other, in the order sent."""

    def __init__(self, kind: str, hello: bytes, sender: Sender, policy: Files | None) -> None:
        self._answered_at = 0.0
        self._sending = threading.Lock()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, FROM[kind])
        here = Sender.here()
        if here.offbeat_version != sender.offbeat_version:
            raise RuntimeError(f"this node has offbeat {here.offbeat_version}, the driver {sender.offbeat_version}")
        node = ray.get_runtime_context().get_node_id()
        os.environ.pop(PLACES, None)  # what this node's Ray was started with may end before this run
        os.environ.update(sender.on_nodes.get(node, sender.libraries if here.boot == sender.boot else {}))
        opening = msgspec.msgpack.decode(hello, type=TO[kind])
        assert isinstance(opening, m.RolloutHello | m.LearnerHello)
        origin = sender.origin_on(here, opening.origin)
        self._directory = Path(opening.run_directory)
        if isinstance(opening, m.RolloutHello):
            assert policy is not None
            self._directory = scratch("lane")
            (self._directory / "versions").mkdir()
            place_files(self._directory / "policy", policy)
        elif not self._directory.is_dir():
            raise RuntimeError(
                f"{self._directory} is not to be seen on this node; choose an --out that all nodes share"
            )
        opening = msgspec.structs.replace(opening, run_directory=str(self._directory), origin=origin)
        settings = settings_from(opening.settings)
        path = str(Path(offbeat.__file__).parents[1]), os.environ.get("PYTHONPATH", "")
        environ = os.environ | environment(settings.run.threads) | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        foreign = interpreters(settings.rollout).get(kind)
        with theirs:
            self._worker = launch(kind, theirs.fileno(), self._printed.fileno(), environ, foreign=foreign)
        server = None if foreign else fork_server()
        self._own_libraries = (node, node in sender.on_nodes) if server and server.is_own else None
        self._deliver(msgspec.msgpack.encode(opening))

    # -- called by the driver ----------------------------------------------------------------------------------

    @ray.method(concurrency_group="take")
    def take(self, frames: list[bytes]) -> None:
        """Deliver messages."""
        for frame in frames:
            self._deliver(frame)

    @ray.method(concurrency_group="take")
    def attach(self, frame: bytes, parcels: list[tuple[int, int, Any]]) -> None:
        """Deliver a TakeUpSamples after its parcels: (trajectory, attempt, reference to what its lane left). One that
        is lost with its node is missing then, which the lane says."""
        for trajectory_id, attempt, left in parcels:
            try:
                contents = ray.get(left)[trajectory_id, attempt]
            except ray.exceptions.RayError:
                continue
            file = parcel_file(self._directory, trajectory_id, attempt)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(contents.data)
        self._deliver(frame)

    @ray.method(concurrency_group="fetch")
    def load(self, frame: bytes, version: int, weights: list[Any]) -> bool:
        """Deliver a LoadWeights after its version's files; False where these are not to be had any more."""
        try:
            files = ray.get(weights[0])
        except ray.exceptions.RayError:
            return False
        place_files(version_directory(self._directory, version), files)
        self._deliver(frame)
        return True

    @ray.method(concurrency_group="fetch")
    def version(self, version: int) -> Files:
        """Files of a version that this learner has published."""
        return read_files(version_directory(self._directory, version), VERSION_FILES)

    @ray.method(concurrency_group="hear")
    def hear(self) -> Heard:
        """All that was said since; waits for it a while."""
        messages: list[Any] = []
        patience = HEAR_SECONDS
        while select.select([self._channel], [], [], patience)[0]:
            messages += self._channel.receive()
            patience = self._answered_at + GATHER_SECONDS - time.monotonic()
            if self._channel.closed or patience <= 0 or not all(isinstance(said, m.Sampled) for said in messages):
                break
        self._answered_at = time.monotonic()
        frames, parcels = [], {}
        for index, message in enumerate(messages):
            frames.append(msgspec.msgpack.encode(message))
            if isinstance(message, m.SamplesGivenUp):
                parcels[index] = ray.put(self._pick_up(message))
            elif isinstance(message, m.WeightsLoaded):
                shutil.rmtree(version_directory(self._directory, message.version), ignore_errors=True)
        own_libraries, self._own_libraries = self._own_libraries, None
        ended, printed = self._end() if self._channel.closed else (None, "")
        return Heard(frames, parcels, ended, printed, own_libraries)

    # ------------------------------------------------------------------------------------------------------------

    def _end(self) -> tuple[str, str]:
        """How the worker ended, all that it started with it, and its last words where it ended by itself."""
        self._worker.await_end(DEATH_SECONDS)
        code = end_group(self._worker)
        self._printed.seek(-min(LAST_WORDS, self._printed.seek(0, os.SEEK_END)), os.SEEK_END)
        return how_it_ended(code), self._printed.read().decode(errors="replace") if code > 0 else ""

    def _pick_up(self, message: m.SamplesGivenUp) -> dict[tuple[int, int], NDArray[np.uint8]]:
        found = {}
        for key in zip(message.trajectory_ids, message.attempts, strict=True):
            file = parcel_file(self._directory, *key)
            found[key] = np.fromfile(file, dtype=np.uint8)
            file.unlink()
        return found

    def _deliver(self, frame: bytes) -> None:
        """Hand a message to the worker and wait until it has taken all of it, or is gone."""
        with self._sending:
            self._channel.send_encoded(frame)
            while self._channel.wants_to_write:
                select.select([], [self._channel], [], 1.0)
                self._channel.flush()
