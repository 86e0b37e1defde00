"""One suite over both backends: the same conversation gives the same answers, and deaths are told alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from offbeat.backends import messages as m
from offbeat.backends.backend import Backend
from offbeat.backends.local import Died, LocalBackend, Name
from offbeat.backends.weights import Canary, publish
from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch, Trajectory
from offbeat.settings import Settings, settings_from
from tests.clusters import ON_CLUSTER, actors, worker_beside
from tests.learner.conftest import model_dir, reference_logits, sample_batch, save_model

__all__ = ["model_dir", "reference_logits", "sample_batch"]
pytestmark = ON_CLUSTER

LEARNER = Name("learner")
LANES = Name("rollout", 0), Name("rollout", 1)
CHOSEN = settings_from(
    {
        "rollout": {"lanes": 2, "slots": 4, "context": 96, "max_new_tokens": 80},
        "learner": {"learning_rate": 1e-2, "warmup_iterations": 0},
        "run": {"backend": "ray"},
    }
)


class Talk:
    """A run directory with version 0, its backend, and what was said."""

    def __init__(self, directory: Path, make: Callable[[Path, Settings], Backend], cluster: Any = None) -> None:
        self.cluster = cluster
        self.directory = directory
        save_model(directory / "policy")
        learner = PolicyLearner.open(directory / "policy", CHOSEN)
        canary = Canary((3,), (4,), tuple(learner.score((3,), (4,))))
        self.digest = publish(directory, 0, learner.publish, lambda: canary).digest
        self.backend = make(directory, CHOSEN)
        self.said: list[tuple[Name, Any]] = []

    def hear(self, kind: type[Any], of: Name, seconds: float = 60.0) -> Any:
        """The next message of this kind from this worker; what others say meanwhile is kept for later."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for index, (name, message) in enumerate(self.said):
                if name == of and isinstance(message, kind):
                    del self.said[index]
                    return message
            self.said += self.backend.poll(0.5)
        raise AssertionError(f"no {kind.__name__} of {of}, but {self.said}")

    def open_lane(self, lane: int, digest: str) -> None:
        name = LANES[lane]
        self.backend.start(name, m.RolloutHello(str(self.directory), CHOSEN.model_dump(mode="json"), 0.0))
        self.backend.send(name, m.OpenLane(lane))
        assert self.hear(m.LaneUp, name).slots == 4
        self.backend.send(name, m.LoadWeights(lane, 0, digest))

    def start_learner(self, version: int, digest: str) -> None:
        hello = m.LearnerHello(str(self.directory), CHOSEN.model_dump(mode="json"), version, digest, 0.0)
        self.backend.start(LEARNER, hello)
        assert self.hear(m.LearnerUp, LEARNER).version == version


def local_backend(directory: Path, chosen: Settings) -> Backend:
    return LocalBackend(directory / "workers.log", 1)


@pytest.fixture
def ray_backend(cluster: Any) -> Callable[[Path, Settings], Backend]:
    def make(directory: Path, chosen: Settings) -> Backend:
        from offbeat.backends.ray_backend import RayBackend
        from offbeat.backends.ray_cluster import connect

        chosen = settings_from(chosen.model_dump() | {"ray": {"address": cluster.address}})
        joined = connect(chosen)
        local = LocalBackend(directory / "workers.log", 1)
        return RayBackend(joined, local, directory, 8, directory / "workers.log", print)

    return make


@pytest.fixture(params=["local", "ray"])
def talk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Talk]:
    if request.param == "local":
        made = Talk(tmp_path, local_backend)
    else:
        made = Talk(tmp_path, request.getfixturevalue("ray_backend"), request.getfixturevalue("cluster"))
    yield made
    made.backend.close()


def conversation(talk: Talk, batch: Batch) -> tuple[dict[int, Trajectory], str, list[str]]:
    """Two lanes, responses that move between them, an iteration, its version loaded, an export."""
    for lane, name in enumerate(LANES):
        talk.open_lane(lane, talk.digest)
        talk.hear(m.WeightsLoaded, name)
    talk.backend.send(LANES[0], m.Sample(0, 0, (3, 5, 7), (0, 1, 2, 3, 4, 5), (0,) * 6))
    talk.backend.send(LANES[0], m.GiveUpSamples(0, (1, 4, 5), True))
    gone = talk.hear(m.SamplesGivenUp, LANES[0])
    talk.backend.send(LANES[1], m.TakeUpSamples(1, gone.trajectory_ids, gone.attempts))
    sampled = {}
    for lane, name in enumerate(LANES):
        for _ in range(len(gone.trajectory_ids) if lane else 6 - len(gone.trajectory_ids)):
            said = talk.hear(m.Sampled, name)
            assert 0 < said.started <= said.ended <= time.monotonic()
            sampled[said.trajectory.trajectory_id] = said.trajectory
    talk.start_learner(0, talk.digest)
    talk.backend.send(LEARNER, m.TrainOn(batch))
    done = talk.hear(m.StepDone, LEARNER)
    talk.backend.send(LANES[1], m.LoadWeights(1, 1, done.digest))
    talk.hear(m.WeightsLoaded, LANES[1])
    talk.backend.send(LEARNER, m.ExportTo(str(talk.directory / "model")))
    talk.hear(m.Exported, LEARNER)
    return sampled, done.digest, sorted(file.name for file in (talk.directory / "model").iterdir())


def test_the_same_conversation_gives_the_same_answers(
    tmp_path: Path, ray_backend: Callable[[Path, Settings], Backend], sample_batch: Callable[..., Batch]
) -> None:
    found = []
    for name, make in (("local", local_backend), ("ray", ray_backend)):
        talk = Talk(tmp_path / name, make)
        try:
            found.append(conversation(talk, sample_batch()))
        finally:
            talk.backend.close()
        assert not list((talk.directory / "parcels").glob("*"))
    assert found[0] == found[1]
    assert len(found[0][0]) == 6


def kill(talk: Talk, name: Name) -> None:
    """The only worker there is."""
    if talk.cluster is None:
        assert isinstance(talk.backend, LocalBackend)
        talk.backend.workers[name].process.kill()
    else:
        [process] = actors(talk.cluster)
        process.kill()


def test_a_killed_worker_dies_once_and_another_takes_its_name(talk: Talk) -> None:
    talk.open_lane(0, talk.digest)
    talk.hear(m.WeightsLoaded, LANES[0])
    kill(talk, LANES[0])
    assert "ended" in talk.hear(Died, LANES[0]).reason
    assert LANES[0] not in talk.backend.workers
    talk.backend.send(LANES[0], m.UnloadWeights(0, 0))
    talk.open_lane(0, talk.digest)
    talk.hear(m.WeightsLoaded, LANES[0])
    assert LANES[0] in talk.backend.workers
    assert not [message for _, message in talk.said if isinstance(message, Died)]


@pytest.mark.parametrize("talk", ["ray"], indirect=True)
def test_actor_and_worker_end_together(talk: Talk) -> None:
    talk.open_lane(0, talk.digest)
    talk.hear(m.WeightsLoaded, LANES[0])
    [actor] = actors(talk.cluster)
    _, worker = worker_beside(actor)
    worker.kill()
    assert talk.hear(Died, LANES[0]).reason == "the rollout process ended by signal SIGKILL"
    actor.wait(10)
    talk.open_lane(0, talk.digest)
    talk.hear(m.WeightsLoaded, LANES[0])
    [actor] = actors(talk.cluster)
    _, worker = worker_beside(actor)
    actor.kill()
    worker.wait(10)


def loaded_by(worker: psutil.Process) -> psutil.Process:
    """The actor with whose libraries a worker was forked: its own or the node's."""
    [found] = [parent for parent in worker.parents() if " ".join(parent.cmdline()).startswith("ray::")][:1]
    return found


def test_on_another_machine_only_the_first_worker_loads_libraries(
    cluster: Any, ray_backend: Callable[[Path, Settings], Backend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver believes that this is another machine than its own. Who has them loaded may die, and another does."""
    from offbeat.backends.ray_host import Sender

    here = Sender.here()
    monkeypatch.setattr(Sender, "here", lambda: msgspec.structs.replace(here, boot="another"))
    talk = Talk(tmp_path, ray_backend, cluster)

    def lane() -> tuple[psutil.Process, psutil.Process]:
        talk.open_lane(0, talk.digest)
        talk.hear(m.WeightsLoaded, LANES[0])
        [actor] = actors(cluster)
        return actor, worker_beside(actor)[1]

    def place() -> dict[str, str]:
        deadline = time.monotonic() + 60
        while not (places := talk.backend.nodes.places()):  # type: ignore[attr-defined]
            assert time.monotonic() < deadline, "no libraries"
            time.sleep(0.1)
        return next(iter(places.values()))

    try:
        actor, worker = lane()
        assert loaded_by(worker) == actor, "nobody has loaded them yet"
        first = place()
        worker.kill()
        talk.hear(Died, LANES[0])
        actor, worker = lane()
        libraries = loaded_by(worker)
        assert " ".join(libraries.cmdline()).startswith("ray::Libraries")
        libraries.kill()
        assert "signal SIGKILL" in talk.hear(Died, LANES[0]).reason
        actor, worker = lane()
        assert loaded_by(worker) == actor, "it was told of a place that is gone"
        second = place()
        assert first != second
    finally:
        talk.backend.close()
    assert not any(Path(each).exists() for place in (first, second) for each in place.values())


def test_a_worker_that_was_replaced_is_not_heard(talk: Talk) -> None:
    talk.open_lane(0, talk.digest)
    talk.backend.send(LANES[0], m.Sample(0, 0, (3,), (0, 1, 2), (0, 0, 0)))
    time.sleep(0.3)
    talk.said.clear()
    talk.open_lane(0, talk.digest)
    talk.hear(m.WeightsLoaded, LANES[0])
    assert not [message for _, message in talk.said if isinstance(message, m.Sampled | Died)]


def test_a_failure_that_can_be_named_is_the_reason_of_the_death(talk: Talk) -> None:
    """Weights that are not the announced ones; then a learner whose version is nowhere."""
    talk.open_lane(0, "0" * 64)
    assert "version 0: announced 000000000000" in talk.hear(Died, LANES[0]).reason
    hello = m.LearnerHello(str(talk.directory), CHOSEN.model_dump(mode="json"), 9, talk.digest, 0.0)
    talk.backend.start(LEARNER, hello)
    assert "version 9: no usable manifest" in talk.hear(Died, LEARNER).reason


@pytest.mark.parametrize("talk", ["ray"], indirect=True)
def test_a_version_outlives_the_learner_that_published_it(talk: Talk, sample_batch: Callable[..., Batch]) -> None:
    """Its learner is killed at once; what the object store has lost for good is put there again from the disk."""
    import ray

    @ray.remote
    class Owner:
        def put(self) -> list[Any]:
            return [ray.put(np.zeros(1 << 20))]

    talk.start_learner(0, talk.digest)
    talk.backend.send(LEARNER, m.TrainOn(sample_batch()))
    done = talk.hear(m.StepDone, LEARNER)
    versions = talk.backend._versions  # type: ignore[attr-defined]
    published = versions[1]
    assert ray.get(published)["model.safetensors"].nbytes > 0
    kill(talk, LEARNER)
    talk.hear(Died, LEARNER)
    talk.open_lane(0, talk.digest)
    talk.hear(m.WeightsLoaded, LANES[0])
    talk.backend.send(LANES[0], m.LoadWeights(0, 1, done.digest))
    assert talk.hear(m.WeightsLoaded, LANES[0]).version == 1
    assert versions[1] is published
    owner: Any = Owner.remote()  # type: ignore[attr-defined]
    [versions[1]] = ray.get(owner.put.remote())
    ray.kill(owner)
    talk.open_lane(1, talk.digest)
    assert talk.hear(m.WeightsLoaded, LANES[1]).version == 0
    talk.backend.send(LANES[1], m.LoadWeights(1, 1, done.digest))
    assert talk.hear(m.WeightsLoaded, LANES[1]).version == 1
    assert ray.get(versions[1])["manifest.json"].nbytes > 0
