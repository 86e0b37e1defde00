"""The learner's other processes, where `learner.processes` asks for more than one: what the first does they do.

The first forks them, on its own machine, while it has no thread yet and no policy, so they have what it has loaded. It
is the only one that talks to the run and, but for shards, writes. They live as long as it does; where one ends, the
next sum fails, the first with it, and the run starts the learner again from its last version.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
from setproctitle import setproctitle

from offbeat.backends.alignment import attach_alignment
from offbeat.backends.heap import Trimming
from offbeat.backends.messages import LearnerHello, TrainOn
from offbeat.backends.weights import version_directory, weights_file
from offbeat.backends.worker import die_with_parent, set_threads
from offbeat.learner.checkpoint import stored_weights
from offbeat.learner.ranks import Ranks
from offbeat.learner.step import PolicyLearner
from offbeat.records import StepReport
from offbeat.settings import settings_from


class _Deed(msgspec.Struct, frozen=True, tag=True):
    """What all processes do together."""


class Step(_Deed, frozen=True):
    order: TrainOn


class Save(_Deed, frozen=True):
    directory: str


class Score(_Deed, frozen=True):
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


class Export(_Deed, frozen=True):
    directory: str


Deed: TypeAlias = Step | Save | Score | Export


class Leader:
    """The learner of the first process. What the others must do with it they are told before: each step, and of a
    sharded policy all that looks at the weights."""

    def __init__(self, learner: PolicyLearner, ranks: Ranks | None) -> None:
        self._learner = learner
        self._ranks = ranks or Ranks()

    @property
    def version(self) -> int:
        return self._learner.version

    def step(self, order: TrainOn, after_pass: Callable[[], None]) -> StepReport:
        self._tell(Step(order), always=True)
        self._learner.after_pass = after_pass
        return self._learner.step(order.batch, order.projection, order.rate)

    def publish(self, directory: Path) -> str:
        self._tell(Save(str(directory)))
        return self._learner.publish(directory)

    def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        self._tell(Score(tuple(prompt_ids), tuple(response_ids)))
        return self._learner.score(prompt_ids, response_ids)

    def export(self, directory: Path) -> None:
        self._tell(Export(str(directory)))
        self._learner.export(directory)

    def _tell(self, deed: Deed, always: bool = False) -> None:
        if self._ranks.count > 1 and (always or self._learner.policy.sharded):
            self._ranks.broadcast(msgspec.msgpack.encode(deed))


def follow(learner: PolicyLearner, ranks: Ranks) -> None:
    """Do what the first process does, for ever; nothing is said."""
    heard, trimming = msgspec.msgpack.Decoder(Deed), Trimming()
    while True:
        match heard.decode(ranks.broadcast(None)):
            case Step(order):
                learner.step(order.batch, order.projection, order.rate)
                trimming.turn()
            case Save(directory):
                learner.publish(Path(directory))
            case Score(prompt_ids, response_ids):
                learner.score(prompt_ids, response_ids)
            case Export(directory):
                learner.export(Path(directory))


@contextmanager
def others(hello: LearnerHello, count: int) -> Iterator[Ranks | None]:
    """Start the others and meet them; None where there are none."""
    if count == 1:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "rendezvous"
        first = os.getpid()
        context = multiprocessing.get_context("fork")
        started = [
            context.Process(target=_other, args=(first, hello, rank, count, meeting)) for rank in range(1, count)
        ]
        for process in started:
            process.start()
        try:
            yield join(0, count, meeting)
        finally:
            for process in started:
                process.kill()
                process.join()


def restored(hello: LearnerHello, ranks: Ranks | None) -> PolicyLearner:
    """The learner as a version's files have it. Raises WeightsError."""
    settings, run_directory = settings_from(hello.settings), Path(hello.run_directory)
    set_threads(settings.run.threads)
    return PolicyLearner.restore(
        run_directory / "policy",
        version_directory(run_directory, hello.version),
        settings,
        hello.version,
        stored=lambda version: stored_weights(weights_file(run_directory, version)),
        attach=attach_alignment,
        ranks=ranks,
    )


def join(rank: int, count: int, meeting: Path) -> Ranks:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)
    return Ranks()


def _other(first: int, hello: LearnerHello, rank: int, count: int, meeting: Path) -> None:
    die_with_parent(first)
    setproctitle(f"{__name__} {rank} of {count} of process {first}")
    ranks = join(rank, count, meeting)
    follow(restored(hello, ranks), ranks)
