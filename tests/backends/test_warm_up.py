"""Compiled loops are at hand before a lane or a learner owes anybody an answer: nothing is left to compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.rollout.tiny import FAMILIES, make_model

CHILD = """
import json, os, sys
from pathlib import Path

from offbeat.backends import fork_server
from offbeat.backends.forking import PRELOADED

fork_server.serve = lambda sock: None
import socket
sys.argv = ["fork_server", str(socket.socketpair()[0].detach()), str(os.getppid()), *PRELOADED]
fork_server.main()
threads = len(os.listdir("/proc/self/task"))

from numba.core.dispatcher import Dispatcher
from offbeat import compiled
from offbeat.learner import pass_kernels
from offbeat.learner.batches import Sample
from offbeat.learner.logprobs import target_logprobs
from offbeat.learner.policy import Policy
from offbeat.ports import Request, Sampling
from offbeat.rollout import kernels
from offbeat.rollout.engine import Engine


def signatures():
    return {
        f"{module.__name__}.{name}": len(loop.signatures)
        for module in (compiled, kernels, pass_kernels)
        for name, loop in vars(module).items()
        if isinstance(loop, Dispatcher)
    }


warm = signatures()
for model in map(Path, json.loads(os.environ["MODELS"])):
    engine = Engine(model, slots=3, context=64, kv_tokens=128)
    engine.load(0, model / "model.safetensors")
    engine.score(0, (4, 5, 6), (8, 9))
    ways = (Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.7, top_p=0.8), Sampling(top_k=4), Sampling())
    for number, way in enumerate(ways):
        engine.submit(Request(number, 0, (4, 5) if number < 4 else (8, 9, 4), number, 20, way))
    while engine.decoded():
        engine.step()
    policy = Policy.load(model)
    samples = [Sample(n, (4, 5, 6), (8, 9, 10)[: 1 + n], (-1.0,) * (1 + n), None, 1.0) for n in range(3)]
    for batch in policy.micro_batches(samples, 64):
        target_logprobs(policy, batch, 1.0)[0].sum().backward()
print(json.dumps({"threads": threads, "warm": warm, "later": signatures()}))
"""


def test_nothing_is_left_to_compile(tmp_path: Path) -> None:
    """As the fork server warms up, in one thread; then every family, in every way."""
    models = []
    for family in FAMILIES:
        model = make_model(family, 0)
        model.save_pretrained(tmp_path / family)
        models.append(str(tmp_path / family))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MODELS": json.dumps(models)}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(child.stdout.splitlines()[-1])
    assert found["threads"] == 1
    assert sum(found["warm"].values()) >= 18
    assert found["later"] == found["warm"]
