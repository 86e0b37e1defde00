"""The backend on a Ray cluster: lanes and learner are actors, everybody else stays a process beside the main one.

The same messages as in `local`, carried by calls of actors; what a message refers to goes with it as arrays in Ray's
object store, from node to node: a version is owned by the main process, so it outlives its learner, and passes through
it only where the learner that published it is gone. *Zombie rule*: nothing is heard of an actor that was replaced.
Knows messages, not what they mean to a run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import ray

from offbeat.backends import messages as m
from offbeat.backends.forking import share_libraries
from offbeat.backends.local import Died, LocalBackend, Name
from offbeat.backends.ray_cluster import Cluster
from offbeat.backends.ray_host import FROM, VERSION_FILES, Heard, Sender, read_files
from offbeat.backends.ray_libraries import Nodes
from offbeat.backends.weights import version_directory

LEARNER = Name("learner")
PATIENCE_SECONDS = 20.0
"""An actor that has been heard of neither with words nor with silence for so long has no room yet."""
KEPT_VERSIONS = 2
"""Newest versions that stay in the object store; others are put there again where a lane asks for them."""


class Actor:
    """A worker, and what its present life is known to have said."""

    def __init__(self, handle: Any, kind: str) -> None:
        self.handle = handle
        self.asked_at: float | None = time.monotonic()
        """Since when nothing has been heard of it; None once it is known to run, or to be waited for."""
        self.decoder = msgspec.msgpack.Decoder(FROM[kind])
        self.failure = ""
        self.outbox: list[bytes] = []
        """What it has not been told yet; one call tells it all."""

    def tell(self) -> None:
        if self.outbox:
            self.handle.take.remote(self.outbox)
            self.outbox = []


class RayBackend:
    """backends.backend.Backend. `local` hosts the workers that are no actors, and is woken when an actor says
    something; `parcels` is the most responses that are under way between lanes. Who waits for room is said once."""

    def __init__(
        self,
        cluster: Cluster,
        local: LocalBackend,
        run_directory: Path,
        parcels: int,
        printed: Path,
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._local = local
        self._directory = run_directory
        self._printed = printed
        self._say = say
        self._sender = msgspec.structs.replace(Sender.here(), libraries=share_libraries())
        self.nodes = Nodes()
        self._actors: dict[Name, Actor] = {}
        self._listening = threading.Lock()
        self._open = True
        """Answers arrive on threads of Ray's, also when nobody waits for them any more."""
        self._arrived: deque[tuple[Name, Actor, Any, Future[Any]]] = deque()
        self._versions: dict[int, Any] = {}
        self._parcels: dict[tuple[int, int], Any] = {}
        self._most_parcels = parcels
        self._policy: Any = None
        cluster.reserve(LEARNER)  # before the lanes take all the room there is

    @property
    def workers(self) -> Container[Name]:
        return self._local.workers.keys() | self._actors.keys()

    def start(self, name: Name, hello: msgspec.Struct) -> None:
        if name.kind not in FROM:
            self._local.start(name, hello)
            return
        self.end(name)
        policy = self._policy_files() if name.kind == "rollout" else None
        sender = msgspec.structs.replace(self._sender, on_nodes=self.nodes.places())
        handle = self._cluster.open(name, name.kind, msgspec.msgpack.encode(hello), sender, policy)
        actor = self._actors[name] = Actor(handle, name.kind)
        self._expect(name, actor, actor.handle.hear.remote(), None)

    def send(self, name: Name, message: msgspec.Struct) -> None:
        actor = self._actors.get(name)
        if actor is None:
            self._local.send(name, message)
            return
        frame = msgspec.msgpack.encode(message)
        match message:
            case m.LoadWeights():
                actor.tell()
                weights = self._version_files(message.version)
                self._expect(name, actor, actor.handle.load.remote(frame, message.version, [weights]), message)
            case m.TakeUpSamples():
                keys = list(zip(message.trajectory_ids, message.attempts, strict=True))
                left = [(*key, self._parcels.pop(key)) for key in keys if key in self._parcels]
                actor.tell()
                actor.handle.attach.remote(frame, left)
            case _:
                actor.outbox.append(frame)

    def poll(self, seconds: float) -> list[tuple[Name, Any]]:
        for actor in self._actors.values():
            actor.tell()
        heard = self._local.poll(0.0 if self._arrived else seconds)
        while self._arrived:
            name, actor, asked, answer = self._arrived.popleft()
            if self._actors.get(name) is not actor:
                continue
            error = answer.exception()
            actor.asked_at = None
            if isinstance(error, ray.exceptions.RayError):
                heard.append((name, self._died(name, *_words(error))))
            elif error is not None:
                raise error
            elif asked is None:
                heard += self._heard(name, actor, answer.result())
            elif not answer.result():
                self._versions.pop(asked.version, None)
                try:
                    self.send(name, asked)
                except OSError as lost:
                    heard.append((name, self._died(name, f"version {asked.version} cannot be read ({lost})")))
        self._tell_who_waits()
        return heard

    def wake(self) -> None:
        self._local.wake()

    def end(self, name: Name) -> None:
        """End an actor at once; nothing more is heard of it."""
        actor = self._actors.pop(name, None)
        if actor is not None:
            ray.kill(actor.handle)

    def close(self) -> None:
        for name in list(self._actors):
            self.end(name)
        with self._listening:
            self._open = False
        self._local.close()
        self.nodes.close()
        self._cluster.shut_down()

    # ------------------------------------------------------------------------------------------------------------

    def _tell_who_waits(self) -> None:
        late = time.monotonic() - PATIENCE_SECONDS
        waiting = [name for name, actor in self._actors.items() if actor.asked_at and actor.asked_at < late]
        for name in waiting:
            self._actors[name].asked_at = None
            which = f"{name.kind} {name.number}" if name.kind == "rollout" else name.kind
            self._say(f"{which} waits for room in the cluster: {self._cluster.asked_for(name)}")

    def _expect(self, name: Name, actor: Actor, answer: Any, asked: Any) -> None:
        """`poll` hears the answer to a call; `asked` is the message it was made for, None for `hear`."""

        def arrived(future: Future[Any]) -> None:
            with self._listening:
                if self._open:
                    self._arrived.append((name, actor, asked, future))
                    self._local.wake()

        answer.future().add_done_callback(arrived)

    def _heard(self, name: Name, actor: Actor, said: Heard) -> list[tuple[Name, Any]]:
        heard: list[tuple[Name, Any]] = []
        if said.own_libraries is not None:
            self.nodes.loaded_its_own(*said.own_libraries)
        for index, frame in enumerate(said.frames):
            message = actor.decoder.decode(frame)
            match message:
                case m.WorkerFailed():
                    actor.failure = message.reason
                case m.StepDone():
                    self._keep(message.version, actor.handle.version.remote(message.version))
                case m.SamplesGivenUp():
                    keys = zip(message.trajectory_ids, message.attempts, strict=True)
                    self._parcels |= dict.fromkeys(keys, said.parcels[index])
                    while len(self._parcels) > self._most_parcels:
                        del self._parcels[next(iter(self._parcels))]
            heard.append((name, message))
        if said.ended is None:
            self._expect(name, actor, actor.handle.hear.remote(), None)
        else:
            if said.printed:
                with open(self._printed, "a") as file:
                    file.write(said.printed)
            how = f"the {name.kind} process ended by {said.ended}"
            heard.append((name, self._died(name, how, printed=bool(said.printed))))
        return heard

    def _died(self, name: Name, how: str, left: bool = False, printed: bool = False) -> Died:
        failure = self._actors[name].failure
        self.end(name)
        return Died(failure or how, str(self._printed) if printed and not failure else "", left)

    def _keep(self, version: int, files: Any) -> None:
        self._versions[version] = files
        for old in sorted(self._versions)[:-KEPT_VERSIONS]:
            del self._versions[old]

    def _version_files(self, version: int) -> Any:
        """A reference to a version's files: its learner's, or read here where that is gone."""
        files = self._versions.get(version)
        if files is None:
            files = ray.put(read_files(version_directory(self._directory, version), VERSION_FILES))
            self._keep(version, files)
        return files

    def _policy_files(self) -> Any:
        if self._policy is None:
            directory = self._directory / "policy"
            self._policy = ray.put(read_files(directory, sorted(file.name for file in directory.iterdir())))
        return self._policy


def _words(error: BaseException) -> tuple[str, bool]:
    """The one line of a Ray error that says what happened, and whether the worker's machine is gone or out of reach: of
    a process that ended alone Ray knows in time."""
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return "its node is out of reach", True
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.partition("because ")[2] for line in lines if "because " in line]
    if getattr(error, "actor_init_failed", False) or not causes:
        return lines[-1], False
    cause = causes[-1].partition(". ")[0].rstrip(".")
    return f"the actor ended: {cause}", "node has died" in cause or getattr(error, "preempted", False)
