"""The learner's other processes, where `learner.processes` asks for more than one: what the first hears they hear.

    python -m offbeat.backends.learner_ranks RANK COUNT RENDEZVOUS

The first starts them, on its own machine, and is the only one that talks to the run and writes. They live as long as it
does; where one ends, the next sum fails, the first with it, and the run starts the learner again from its last version.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from offbeat.backends.alignment import attach_alignment
from offbeat.backends.messages import LearnerHello, ToLearner, TrainOn
from offbeat.backends.weights import version_directory, weights_file
from offbeat.backends.worker import die_with_parent, set_threads
from offbeat.learner.checkpoint import stored_weights
from offbeat.learner.ranks import Ranks
from offbeat.learner.step import PolicyLearner
from offbeat.settings import settings_from


@contextmanager
def others(hello: LearnerHello, count: int) -> Iterator[Ranks | None]:
    """Start the others and meet them; None where there are none."""
    if count == 1:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "rendezvous"
        started = [
            subprocess.Popen([sys.executable, "-m", __name__, str(rank), str(count), str(meeting)])
            for rank in range(1, count)
        ]
        try:
            ranks = join(0, count, meeting)
            ranks.broadcast(msgspec.msgpack.encode(hello))
            yield ranks
        finally:
            for process in started:
                process.kill()
                process.wait()


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


def main(rank: int, count: int, meeting: Path) -> None:
    """Do what the first process does with every batch; nothing is said and nothing is written."""
    die_with_parent()
    ranks = join(rank, count, meeting)
    hello = msgspec.msgpack.decode(ranks.broadcast(None), type=LearnerHello)
    learner = restored(hello, ranks)
    heard = msgspec.msgpack.Decoder(ToLearner)
    while True:
        message = heard.decode(ranks.broadcast(None))
        assert isinstance(message, TrainOn)
        learner.step(message.batch, message.projection, message.rate)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
