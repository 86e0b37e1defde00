"""Ray itself: start it or join one, and reserve room in it for workers, one placement group each.

A worker whose room is not there yet is a pending placement group: what an autoscaler sees as demand. A Ray started here
lasts as long as this process and lets nobody in without its token; usage statistics are not sent.
Knows no messages.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
from math import ceil
from typing import Any

from offbeat.backends.forking import share_libraries
from offbeat.backends.local import Name
from offbeat.errors import SettingsError
from offbeat.settings import Settings

OURS = {
    "RAY_AUTH_MODE": "token",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_worker_niceness": "0",
}
"""Of a Ray that is started here: nobody else gets in, nobody looks at its dashboard, and lanes and learner do not give
way to everything else on the machine (Ray's default is a niceness of 15)."""


class Cluster:
    def __init__(self, settings: Settings, ours: bool) -> None:
        import ray

        from offbeat.backends.ray_host import Host

        self._settings = settings
        self._ours = ours
        self._node = ray.get_runtime_context().get_node_id()
        remote: Any = ray.remote
        self._actor = remote(concurrency_groups={"take": 1, "fetch": 1, "hear": 1}, max_restarts=0)(Host)
        self._rooms: dict[Name, Any] = {}

    def reserve(self, name: Name) -> Any:
        """The placement group of a worker, which it keeps over its lives; Ray finds another node where one is lost."""
        import ray

        if name not in self._rooms:
            here = [{"ray.io/node-id": self._node}] if self._pinned(name) else None
            self._rooms[name] = ray.util.placement_group([resources(name, self._settings)], bundle_label_selector=here)
        return self._rooms[name]

    def open(self, name: Name, *arguments: Any) -> Any:
        """Start a worker as soon as there is room; its actor's handle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = resources(name, self._settings)
        return self._actor.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self.reserve(name), 0),
        ).remote(*arguments)

    def asked_for(self, name: Name) -> str:
        """What a worker needs, in words."""
        amounts = [f"{amount:g} {what}" for what, amount in resources(name, self._settings).items()]
        return " and ".join(amounts) + (" on this node" if self._pinned(name) else "")

    def _pinned(self, name: Name) -> bool:
        """A learner writes into the run directory: it stays where that is, unless that is everywhere."""
        return name.kind == "learner" and not self._settings.ray.shared_directory

    def shut_down(self) -> None:
        """Give up all room, and end the Ray that was started here."""
        import ray

        for room in self._rooms.values():
            ray.util.remove_placement_group(room)
        self._rooms.clear()
        if self._ours:
            ray.shutdown()


def resources(name: Name, settings: Settings) -> dict[str, float]:
    """What a worker reserves."""
    chosen = settings.ray
    if name.kind == "learner":
        return {"CPU": settings.learner.processes * chosen.learner_cpus}
    return {"CPU": chosen.lane_cpus} | ({"GPU": chosen.lane_gpus} if chosen.lane_gpus else {})


def connect(settings: Settings) -> Cluster:
    """Join the cluster that the settings name, or start one here. Raises SettingsError where that cannot be."""
    if importlib.util.find_spec("ray") is None:
        raise SettingsError("run.backend = 'ray': Ray is not installed; pip install 'offbeat[ray]'")
    share_libraries()  # before this process has a server for itself
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = settings.ray.address or os.environ.get("RAY_ADDRESS", "")
    if not address:
        for name, value in OURS.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    if ray.is_initialized():
        return Cluster(settings, ours=False)
    on_term = signal.getsignal(signal.SIGTERM)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            _look_up(address)
            ray.init(address=address, **quiet)
        else:
            ray.init("local", num_cpus=_cpus(settings), include_dashboard=False, **quiet)
            _check_gpus(settings, ray.cluster_resources().get("GPU", 0.0))  # type: ignore[no-untyped-call]
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"ray.address = {address!r}" if address else "run.backend = 'ray'"
        reason = (str(error).strip().splitlines() or ["no answer"])[0]
        raise SettingsError(
            f"{where}: {reason.rstrip('.')}; start Ray there, or name an address that this machine's node is part of"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, on_term)  # Ray puts its own there, which ends a run without a word
    return Cluster(settings, ours=True)


def _look_up(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself would ask for a minute."""
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=10).close()


def _check_gpus(settings: Settings, here: float) -> None:
    """No node will join a Ray that was started here: what it has not, lanes would wait for in vain."""
    wanted = settings.rollout.processes * settings.ray.lane_gpus
    if wanted > here:
        raise SettingsError(
            f"ray.lane_gpus = {settings.ray.lane_gpus:g}: lanes reserve {wanted:g} GPUs, this machine has {here:g};"
            " lower it, or name a cluster by ray.address"
        )


def _cpus(settings: Settings) -> int:
    """Room for all workers of the run on this machine, however many cores it has: as the local backend does it."""
    lanes = settings.rollout.processes * settings.ray.lane_cpus
    return max(os.cpu_count() or 1, ceil(lanes + settings.learner.processes * settings.ray.learner_cpus))
