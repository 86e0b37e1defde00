"""`offbeat serve` refuses what it cannot serve in one line, exit code 2, before anything large is loaded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from offbeat.cli import main
from offbeat.commands.serve import serve
from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.serve.address import Address
from offbeat.serve.calls import LaneLost
from offbeat.serve.record import CallRecord

from .conftest import policy

LARGE = ("torch", "transformers", "numba", "uvicorn", "vllm")
PROBE = """
import json, sys
from offbeat.cli import main
found = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["offbeat", "serve", *arguments]
    try:
        main()
        code = 0
    except SystemExit as error:
        code = error.code
    found.append([code, [name for name in json.loads({large!r}) if name in sys.modules]])
print(json.dumps(found))
"""


def refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command says."""
    monkeypatch.setattr(sys, "argv", ["offbeat", "serve", *arguments])
    monkeypatch.delenv("OFFBEAT_API_KEY", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out, len(said.err.splitlines())) == (2, "", 1), said.err
    assert said.err.startswith("offbeat: ")
    return said.err


def numeric_options() -> list[str]:
    """Every option of the command that takes a number."""
    hints = get_type_hints(serve)
    return [f"--{name.replace('_', '-')}" for name, hint in hints.items() if {int, float} & {hint, *get_args(hint)}]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (option, value)
        for option in numeric_options()
        for value in ("inf", "-inf", "nan", "-1", "0", "1e400", "9" * 30, "9" * 5000, "", "x")
        if (option, value) != ("--port", "0")  # any that is free
    ],
)
def test_a_number_that_cannot_be_is_one_line(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert option in refused([str(policy()), f"{option}={value}"], monkeypatch, capsys)


def test_numbers_are_asked_for_by_these_options() -> None:
    assert {"--port", "--lanes", "--lease", "--context", "--max-calls", "--keep-versions"} <= set(numeric_options())


def test_what_cannot_be_served_is_refused_before_anything_large_is_loaded(tmp_path: Path) -> None:
    """Each of these took seconds."""
    (tmp_path / "short").write_text("key")
    (tmp_path / "key").write_text("long-enough")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{}")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"")
    good, key = str(policy()), ["--key-file", str(tmp_path / "key")]
    held = CallRecord(tmp_path / "calls.jsonl", print)
    with Address("127.0.0.1", 0, "").bind() as taken:
        cases = {
            "no directory": [str(tmp_path / "nope")],
            "no model": [str(tmp_path / "short")],
            "a model without weights": [str(tmp_path)],
            "a model that is none": [str(tmp_path / "damaged")],
            "a host for all": [good, "--host", "0.0.0.0"],
            "a host elsewhere": [good, "--host", "192.0.2.1", *key],
            "a host that is none": [good, "--host", "ä..b", *key],
            "a port that is taken": [good, "--port", str(taken.getsockname()[1])],
            "a port that is none": [good, "--port", "65536"],
            "no key": [good, "--key-file", str(tmp_path / "none")],
            "a short key": [good, "--key-file", str(tmp_path / "short")],
            "a name": [good, "--name", "a@b"],
            "a record in no directory": [good, "--port", "0", "--record", str(tmp_path / "no" / "calls.jsonl")],
            "a record that is a directory": [good, "--port", "0", "--record", str(tmp_path)],
            "a record that another writes": [good, "--port", "0", "--record", str(tmp_path / "calls.jsonl")],
            "a lease": [good, "--lease", "inf"],
            "a context": [good, "--context", "9999999"],
            "a number of versions": [good, "--max-versions", "9" * 30],
        }
        environment = {name: value for name, value in os.environ.items() if name != "OFFBEAT_API_KEY"}
        probe = [sys.executable, "-c", PROBE.format(large=json.dumps(LARGE)), json.dumps([*cases.values()])]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=120, check=True, env=environment)
    held.close()
    lines = done.stderr.splitlines()
    assert len(lines) == len(cases), done.stderr
    for what, line, (code, loaded) in zip(cases, lines, json.loads(done.stdout), strict=True):
        assert code == 2, (what, line)
        assert loaded == [], (what, line)
        assert line.startswith("offbeat: "), (what, line)
        assert ";" in line or "Invalid value" in line or "Input should" in line, (what, line)


def test_an_address_is_refused_with_what_helps() -> None:
    with Address("127.0.0.1", 0, "").bind() as sock:
        for host, port, remedy in (
            ("127.0.0.1", sock.getsockname()[1], "choose another port"),
            ("192.0.2.1", 0, "give an address of this machine"),
            ("a..b", 0, "give an address of this machine"),
            ("ä..b", 0, "give an address of this machine"),
        ):
            with pytest.raises(SettingsError, match=remedy):
                Address(host, port, "long-enough").bind()


def test_two_servers_do_not_write_one_record(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    said: list[Any] = []
    first = CallRecord(file, said.append)
    first.saw(LaneLost(0, "gone", 0))
    with pytest.raises(RunDirectoryError, match=f"^--record {file}: in use by another process; ") as caught:
        CallRecord(file, said.append)
    assert caught.value.exit_code == 2
    first.saw(LaneLost(1, "gone", 0))
    first.close()
    second = CallRecord(file, said.append)
    second.saw(LaneLost(2, "gone", 0))
    second.close()
    assert [json.loads(line)["lane"] for line in file.read_text().splitlines()] == [0, 1, 2]
    assert said == []


def test_what_is_no_file_is_anybodys_record() -> None:
    both = [CallRecord(Path("/dev/null"), print) for _ in range(2)]
    for each in both:
        each.close()


def test_a_socket_listens_while_its_server_is_made() -> None:
    """A port is had before the large libraries are loaded, not only asked for."""
    with Address("127.0.0.1", 0, "").bind() as sock, socket.create_connection(sock.getsockname()[:2], timeout=5):
        pass
