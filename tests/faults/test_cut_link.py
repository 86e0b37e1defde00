"""The link between two nodes of a cluster is cut, with both of them alive: the second is a network namespace.

What docs/faults.md and docs/cluster.md promise: the lane beyond is lost with its node and nobody is blamed, training
goes on, and when the link is back nothing that was sampled beyond it meanwhile is heard.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from offbeat import events as e
from tests.clusters import ON_CLUSTER, WATCHFUL, node

from .conftest import Trial, noise
from .test_cluster import said
from .test_kills import assert_clean

pytestmark = ON_CLUSTER
N = 1000
NAMESPACE, HERE, THERE = f"offbeat-{os.getpid()}", f"ofh{os.getpid() % 10**9}", f"oft{os.getpid() % 10**9}"
NEAR, FAR = "10.199.77.1", "10.199.77.2"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def link() -> Iterator[str]:
    """A pair of connected devices, one of them in a namespace of its own; the name of this side's."""
    if shutil.which("ip") is None:
        pytest.skip("needs `ip` (iproute2)")
    try:
        ip("netns", "add", NAMESPACE)
        ip("link", "add", HERE, "type", "veth", "peer", "name", THERE, "netns", NAMESPACE)
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True)
        pytest.skip(f"network namespaces are not permitted here ({error.stderr.strip()})")
    try:
        ip("address", "add", f"{NEAR}/30", "dev", HERE)
        ip("link", "set", HERE, "up")
        for inside in (
            ("address", "add", f"{FAR}/30", "dev", THERE),
            ("link", "set", THERE, "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", NAMESPACE, *inside)
        yield HERE
    finally:
        ip("netns", "del", NAMESPACE)


@pytest.fixture
def cluster(link: str) -> Iterator[Any]:
    """A head on this side, for driver, learner and a lane, and a node on the other, for a lane."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    head = node(2) | {"node_ip_address": NEAR, "_system_config": WATCHFUL}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    with ExitStack() as undo:
        undo.callback(made.shutdown)
        for _ in range(2):  # on a busy machine the first may be taken for dead before it has joined, and then hangs
            other = node_beyond(made.address)
            undo.callback(end, other)
            if joined(made):
                break
            end(other)
        yield made


def node_beyond(address: str) -> subprocess.Popen[bytes]:
    ray = Path(sys.executable).with_name("ray")
    return subprocess.Popen(
        ["ip", "netns", "exec", NAMESPACE, str(ray), "start", f"--address={address}", f"--node-ip-address={FAR}",
         "--num-cpus=1", f"--object-store-memory={100 * 2**20}", "--block"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def joined(made: Any, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if sum(each["Alive"] for each in made.global_state.node_table()) == 2:
            return True
        time.sleep(0.1)
    return False


def end(other: subprocess.Popen[bytes]) -> None:
    for how, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        if other.poll() is None:
            os.killpg(other.pid, how)
            with suppress(subprocess.TimeoutExpired):
                other.wait(seconds)


def test_a_cut_link_loses_the_lane_beyond_it_and_nothing_else(cluster: Any, link: str, trial: Trial) -> None:
    process = trial.begin(
        *noise(trial), f"learner.iterations={N}", "rollout.lanes=2", "rollout.max_new_tokens=60",
        "schedule.max_versions=1", "run.backend=ray", f"ray.address={cluster.address}",
    )  # fmt: skip
    trial.wait_for(lambda: len({event.lane for event in said(trial, e.Finished)}) == 2, process)
    ip("link", "set", link, "down")
    trial.wait_for(lambda: bool(said(trial, e.LaneLost)), process)
    trial.wait_for_version(trial.version() + 3, process)
    ip("link", "set", link, "up")
    trial.wait_for_version(trial.version() + 3, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    heard = said(trial, e.LaneLost, e.Finished, e.LearnerLost)
    first = next(index for index, event in enumerate(heard) if isinstance(event, e.LaneLost))
    lost = heard[first]
    assert all(event.left for event in heard if isinstance(event, e.LaneLost)), "its node is gone: nobody is to blame"
    assert not [event for event in heard if isinstance(event, e.LearnerLost)]
    assert {event.lane for event in heard[first:]} == {lost.lane, 1 - lost.lane}
    assert {event.lane for event in heard[first:] if isinstance(event, e.Finished)} == {1 - lost.lane}
    assert_clean(trial, trial.version(), recompute=20)
