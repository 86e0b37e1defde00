"""Each problem of a machine is named with its remedy; only what makes training impossible is an error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from offbeat.diagnosis.doctor import GIB, examine
from offbeat.diagnosis.machine import Machine, Package, look_around
from offbeat.diagnosis.servers import Answer

FIT = Machine(
    offbeat="0.3.0", python=(3, 11, 7), system="Linux",
    packages=(Package("torch", "2.6", "2.13.0+cpu"), Package("numpy", "1.26", "2.4.6")),
    cores=8, cores_allowed=None, threads_wanted="1", memory_bytes=16 * GIB, gpus=0, torch_cuda="",
    shared_memory_bytes=8 * GIB, here="/data", free_bytes=90 * GIB, directory_problem="", scratch_bytes=8 * GIB,
    descriptors=65536, processes=-1, loopback_problem="", ports_taken=(), browser=None, ray=None, ray_answer=None,
    vllm=None, vllm_python="/data/.venv-vllm/bin/python", vllm_problem="", vllm_answer=None,
    cache="/cache", cache_bytes=0, cache_problem="",
)  # fmt: skip

PROBLEMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "python": ({"python": (3, 10, 1)}, "error", "3.11"),
    "package-missing": ({"packages": (Package("torch", "2.6", None),)}, "error", "pip install 'torch>=2.6'"),
    "package-old": ({"packages": (Package("torch", "2.10", "2.9.1+cpu"),)}, "error", "pip install 'torch>=2.10'"),
    "not-installed": ({"packages": ()}, "warning", "pip install -e ."),
    "system": ({"system": "Darwin"}, "note", "wait"),
    "torch-without-cuda": ({"gpus": 2}, "warning", "pytorch.org"),
    "cores": ({"cores": 1}, "warning", "2 cores"),
    "core-quota": ({"cores_allowed": 3.0}, "note", "rollout.lanes"),
    "threads": ({"threads_wanted": "8"}, "note", "run.threads"),
    "memory": ({"memory_bytes": GIB}, "warning", "end something"),
    "directory": ({"directory_problem": "No locks available"}, "error", "local"),
    "disk": ({"free_bytes": 1 << 20}, "error", "make room"),
    "scratch": ({"scratch_bytes": 0}, "warning", "TMPDIR"),
    "shared-memory": ({"shared_memory_bytes": 64 << 20, "ray": "2.60.0"}, "warning", "--shm-size"),
    "policy-cache": ({"cache_problem": "/cache is not writable"}, "error", "XDG_CACHE_HOME"),
    "descriptors": ({"descriptors": 256}, "warning", "ulimit -n"),
    "processes": ({"processes": 100}, "warning", "ulimit -u"),
    "loopback": ({"loopback_problem": "no such device"}, "warning", "ip link"),
    "port-taken": ({"ports_taken": (8000,), "vllm": "0.32.0"}, "note", "another port"),
    "ray-unreachable": ({"ray": "2.60.0", "ray_answer": Answer("h:1", "refused")}, "warning", "ray start"),
    "ray-missing": ({"ray_answer": Answer("h:1", "")}, "warning", "pip install"),
    "vllm-python": ({"vllm_problem": "OFFBEAT_VLLM_PYTHON = /nope: no Python there"}, "warning", "make vllm"),
    "vllm-unreachable": ({"vllm_answer": Answer("http://h", "refused")}, "warning", "URL"),
}


def test_a_fit_machine_has_no_problem() -> None:
    assert examine(FIT) == ()
    assert examine(FIT._replace(ports_taken=(6379, 8000))) == (), "nobody here listens there by default"


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_named_with_its_remedy(name: str) -> None:
    changes, severity, remedy = PROBLEMS[name]
    [finding] = examine(FIT._replace(**changes))
    assert (finding.name, finding.severity) == (name, severity)
    assert remedy in finding.remedy


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def test_servers_are_asked_and_answer_or_not(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_port
    seen = look_around(tmp_path, f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/")
    server.shutdown()
    server.server_close()
    assert (seen.ray_answer, seen.vllm_answer) == (
        Answer(f"127.0.0.1:{port}", ""),
        Answer(f"http://127.0.0.1:{port}/", ""),
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    seen = look_around(tmp_path, f"127.0.0.1:{closed}", f"http://127.0.0.1:{closed}")
    assert seen.ray_answer is not None
    assert seen.vllm_answer is not None
    assert "refused" in seen.ray_answer.problem.lower()
    assert "refused" in seen.vllm_answer.problem.lower()
    assert list(tmp_path.iterdir()) == [], "looking changes nothing"


def test_what_is_seen_here_is_so(tmp_path: Path) -> None:
    seen = look_around(tmp_path)
    assert seen.cores == len(os.sched_getaffinity(0))
    assert seen.python == sys.version_info[:3]
    assert seen.directory_problem == ""
    assert {"torch", "transformers", "numpy"} <= {package.name for package in seen.packages}
    import torch

    assert seen.torch_cuda == (torch.version.cuda or "")
    assert "No such file" in look_around(tmp_path / "nowhere").directory_problem


def test_the_command_says_whether_training_is_possible_and_imports_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys; from offbeat.cli import app; app(sys.argv[1:], standalone_mode=False)"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "transformers", "ray", "numpy"}
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["facts"]["here"] == str(tmp_path)
    unwritable = os.environ | {"XDG_CACHE_HOME": "/proc/nowhere"}
    command = [sys.executable, "-m", "offbeat.cli", "doctor"]
    refused = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=unwritable)
    if os.geteuid() != 0:
        assert refused.returncode == 1, refused.stdout
    assert "policy cache /proc/nowhere" in refused.stdout
    assert "Traceback" not in refused.stderr
