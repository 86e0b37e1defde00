"""Asks the servers of optional parts, Ray and vLLM, whether they answer; starts nothing and changes nothing.

Ray is looked for as a run looks for it, without importing it.
"""

from __future__ import annotations

import os
import re
import socket
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from offbeat.errors import SettingsError
from offbeat.settings import no_ray_address

ANSWER_SECONDS = 1.0
NO_RAY = "no Ray runs on this machine"
LAST_PORT = 65535
_RAYLET = re.compile(rb"\A[^\0]*raylet[\0 ].*?--gcs-address=([^\0 ]+)", re.DOTALL)


class Answer(NamedTuple):
    """What became of asking a server: `problem` is empty where it answered."""

    address: str
    problem: str


def check_addresses(ray: str | None, vllm: str | None) -> None:
    """Raises SettingsError where the value of --ray or of --vllm is no address at all."""
    if ray is not None and (problem := _no_ray_address(ray)):
        raise SettingsError(f"--ray {ray}: {problem}; give auto, or HOST:PORT of the head")
    if vllm is not None and (problem := _no_url(vllm)):
        raise SettingsError(f"--vllm {vllm}: {problem}; give a URL such as http://HOST:8000")


def ask_ray(address: str | None) -> Answer | None:
    """Ask the Ray at this address or at RAY_ADDRESS, as a run would; without either the one that a `ray start` on this
    machine left word of. None where nobody is asked: no Ray is named or left, or `local`, which a run starts itself."""
    if address in (None, "auto"):
        address = os.environ.get("RAY_ADDRESS") or address
    if address == "local":
        return None
    if address == "auto":
        here = _ray_for_auto()
        return Answer(f"auto ({here})", _no_answer(here)) if here else Answer("auto", NO_RAY)
    address = address or _ray_left_here()
    return Answer(address, _no_ray_address(address) or _no_answer(address)) if address else None


def ask_vllm(url: str | None) -> Answer | None:
    """Ask a server's /health."""
    if not url:
        return None
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/health", timeout=2 * ANSWER_SECONDS):
            return Answer(url, "")
    except (OSError, ValueError, HTTPException) as error:
        return Answer(url, str(getattr(error, "reason", None) or error) or type(error).__name__)


def _no_ray_address(address: str) -> str:
    """Why a run would not take this address: what `ray.address` of its settings refuses, and ports beyond the last."""
    problem = no_ray_address(address)
    if problem or address == "auto":
        return problem
    port = int(address.rpartition(":")[2])
    return f"no port {port}, the last is {LAST_PORT}" if port > LAST_PORT else ""


def _no_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        _ = parts.port  # refused here, not when it is opened
    except ValueError as error:
        return f"no address ({error})"
    if parts.scheme not in ("http", "https"):
        return "not an http or https address"
    return "" if parts.hostname and re.fullmatch(r"[\x21-\x7e]+", text) else "names no host"


def _no_answer(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def _ray_for_auto() -> str | None:
    """Where `auto` leads: to the Ray that runs here; among several, or where none is seen, to the last one started."""
    running, left = list(_rays_running_here()), _ray_left_here()
    return left if left and len(running) != 1 else next(iter(running), None)


def _rays_running_here() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            match = _RAYLET.search(file.read_bytes())
        except OSError:  # it has ended, or is somebody else's
            continue
        if match:
            yield match[1].decode(errors="replace")


def _ray_left_here() -> str | None:
    """The address that the last `ray start` on this machine left behind."""
    directory = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        return (Path(directory) / "ray" / "ray_current_cluster").read_text().strip() or None
    except (OSError, ValueError):
        return None
