"""Run code that nobody has read: in a process of its own with little memory, little time, no network, no other process.

Invariant: code runs confined (`confined`) or not at all; whatever it does, the process is gone and its scratch
directory removed when the call ends, also when the call is cancelled. Linux only. Knows no model and no task.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from pathlib import Path
from typing import NamedTuple

from offbeat.errors import TaskError

_SCRIPT = Path(__file__).with_name("confined.py")


class Limits(NamedTuple):
    """`memory_bytes` of address space; `seconds` both of processor and of wall-clock time; `output_bytes` are kept of
    what it prints; `file_bytes` is the most one file may hold."""

    memory_bytes: int = 256 << 20
    seconds: float = 2.0
    output_bytes: int = 4096
    file_bytes: int = 1 << 20


class Output(NamedTuple):
    """What the code printed (at most `output_bytes`, then cut); `ended` says how: done, raised, killed, out of time."""

    text: str
    ended: str


async def check_confinement() -> None:
    """Raises TaskError where this machine cannot confine a program; to be asked before the first is run."""
    text, ended = await run_python("", Limits(seconds=30))
    if ended != "done":
        raise TaskError(
            f"untrusted code cannot be confined here ({text.strip() or ended}); it needs Linux 5.13 or newer"
        )


async def run_python(code: str, limits: Limits = Limits()) -> Output:
    """Run a program; confined or not at all. Raises TaskError on another system than Linux."""
    with tempfile.TemporaryDirectory(prefix="offbeat-scratch-") as scratch:
        process = await _started(scratch, limits)
        try:
            async with asyncio.timeout(limits.seconds):
                printed = await _talk(process, code, limits.output_bytes)
                cut = len(printed) > limits.output_bytes
                if not cut:
                    await process.wait()
                ended = "too much output" if cut else _how(process.returncode or 0)
        except TimeoutError:
            printed, ended = b"", "out of time"
        finally:
            await _end(process)
    text = printed[: limits.output_bytes].decode("utf-8", "replace")
    return Output(text, ended)


async def _started(scratch: str, limits: Limits) -> Process:
    if not sys.platform.startswith("linux"):
        raise TaskError(f"untrusted code cannot be confined on {sys.platform}; run this task on Linux")
    bounds = {
        "AS": limits.memory_bytes,
        "CPU": max(1, int(limits.seconds + 0.999)),
        "FSIZE": limits.file_bytes,
        "NOFILE": 32,
        "CORE": 0,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-B", str(_SCRIPT), scratch, json.dumps(bounds),
        stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True, cwd=scratch,
        env={"HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8"},
    )  # fmt: skip


async def _talk(process: Process, code: str, most: int) -> bytes:
    """Hand the code over and read what it prints, one byte more than is kept at most."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(code.encode("utf-8", "replace"))
        await process.stdin.drain()
    process.stdin.close()
    printed = bytearray()
    while len(printed) <= most:
        chunk = await process.stdout.read(most + 1 - len(printed))
        if not chunk:
            break
        printed += chunk
    return bytes(printed)


def _how(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return {0: "done", 1: "raised"}.get(code, "failed")


async def _end(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):  # a reader that is full and paused keeps `wait` waiting for ever
        pass
    await process.wait()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
