"""Untrusted code computes and prints; it reaches nothing else, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from offbeat.tasks import sandbox
from offbeat.tasks.sandbox import Limits, Output, run_python

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="confinement is of Linux")


def run(code: str, **limits: float) -> Output:
    return asyncio.run(run_python(code, Limits(**limits)))  # type: ignore[arg-type]


def test_programs_print_and_the_last_line_is_worth_something() -> None:
    assert run("print('a')\nx = 6\nx * 7") == Output("a\n42\n", "done")
    assert run("import math, json, fractions\nfractions.Fraction(1, 3) + math.factorial(3)") == Output("19/3\n", "done")
    assert run("import sys; sys.exit()") == Output("", "done")


def test_what_a_program_raises_is_its_output() -> None:
    assert run("1/0") == Output("ZeroDivisionError: division by zero\n", "raised")
    text, ended = run("x = (")
    assert "SyntaxError" in text
    assert ended == "raised"


REFUSED = {
    "a connection": "import socket; socket.create_connection(('127.0.0.1', 1))",
    "a socket": "import socket; socket.socket()",
    "a name": "import socket; socket.getaddrinfo('example.com', 80)",
    "a process": "import os; os.fork()",
    "a program": "import os; os.execv('/bin/sh', ['sh'])",
    "a shell": "import subprocess; subprocess.run(['/bin/true'])",
    "a thread": "import threading; threading.Thread(target=print).start()",
    "a signal": "import os; os.kill(os.getppid(), 9)",
    "its limits": "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))",
    "a secret": "open('/etc/passwd').read()",
    "a home": "import os; os.listdir('/root')",
    "a process's memory": "open('/proc/self/mem', 'rb').read(1)",
    "its parent": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "a file elsewhere": "open('/tmp/offbeat-escape', 'w')",
    "a link out": "import os; os.link('/etc/passwd', 'here')",
    "what a symbolic link names": "import os; os.symlink('/etc/passwd', 'here'); open('here').read()",
}


@pytest.mark.parametrize("what", REFUSED)
def test_out_of_reach(what: str) -> None:
    text, ended = run(REFUSED[what])
    assert ended == "raised", (text, ended)
    assert any(
        word in text
        for word in ("PermissionError", "gaierror", "RuntimeError", "BlockingIOError", "ValueError", "OSError")
    )
    assert not Path("/tmp/offbeat-escape").exists()


def test_the_environment_and_the_imports_are_bare() -> None:
    os.environ["OFFBEAT_SECRET"] = "told"
    try:
        assert "told" not in run("import os; print(os.environ)").text
    finally:
        del os.environ["OFFBEAT_SECRET"]
    assert "ModuleNotFoundError" in run("import numpy").text


def test_memory_time_output_and_files_are_bounded() -> None:
    assert "MemoryError" in run("x = bytearray(1 << 30)").text
    began = time.monotonic()
    assert run("while True: pass", seconds=0.4).ended == "out of time"
    assert run("import time; time.sleep(100)", seconds=0.4).ended == "out of time"
    assert time.monotonic() - began < 5
    text, ended = run("while True: print('x' * 100)", output_bytes=1000)
    assert (len(text), ended) == (1000, "too much output")
    large = "f = open('f', 'wb', 0)\nwhile True: f.write(bytes(500))"
    assert run(large, file_bytes=1000).ended in ("raised", "killed by SIGXFSZ")


def test_what_floods_a_paused_reader_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = sandbox._talk

    async def slow(process: Process, code: str, most: int) -> bytes:
        printed = await talk(process, code, most)
        await asyncio.sleep(0.3)  # pipe and reader fill up
        return printed

    monkeypatch.setattr(sandbox, "_talk", slow)
    call = run_python("while True: print('x' * 100)", Limits(output_bytes=1000))
    assert asyncio.run(asyncio.wait_for(call, 30)).ended == "too much output"


def test_the_scratch_directory_is_its_own_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run("open('f', 'w').write('kept'); open('f').read()") == Output("kept\n", "done")
    assert "FileNotFoundError" in run("open('f')").text
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_is_cancelled_leaves_no_process() -> None:
    async def scenario() -> None:
        task = asyncio.create_task(run_python("import time; time.sleep(100)", Limits(seconds=100)))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert not any(b"confined.py" in command for command in commands)


def test_many_at_once() -> None:
    async def scenario() -> list[Output]:
        return await asyncio.gather(*(run_python(f"{i} * 2", Limits(seconds=20)) for i in range(8)))

    assert [output.text for output in asyncio.run(scenario())] == [f"{2 * i}\n" for i in range(8)]
