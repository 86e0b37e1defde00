"""What doctor says of Ray and vLLM is what a run would find, and addresses that are none are refused in one line."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from offbeat.backends.vllm.interpreter import VARIABLE, vllm_python
from offbeat.diagnosis import servers
from offbeat.diagnosis.doctor import examine, facts_in_words
from offbeat.diagnosis.machine import look_around
from offbeat.diagnosis.servers import NO_RAY, ask_ray, ask_vllm, check_addresses
from offbeat.errors import SettingsError
from offbeat.settings_sections import RaySettings, RolloutSettings


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No address in the environment, no Ray on this machine, and no vLLM beside."""
    for name in ("RAY_ADDRESS", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(servers, "_rays_running_here", lambda: iter(()))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def _python(file: Path, says: str) -> Path:
    """A program that answers as a Python with vLLM does."""
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\necho '{says}'\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def _said(here: Path) -> tuple[list[str], str]:
    """Names of what is wrong with vLLM and Ray, and the line of optional parts."""
    machine = look_around(here)
    wrong = [finding.name for finding in examine(machine) if finding.name.startswith(("ray", "vllm"))]
    return wrong, list(facts_in_words(machine))[-1]


# -- vLLM ------------------------------------------------------------------------------------------------------


def test_vllm_is_looked_for_where_a_run_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = tmp_path / ".venv-vllm/bin/python"
    wrong, line = _said(tmp_path)
    assert wrong == [], "it is optional"
    assert f"vLLM none at {default}" in line
    _python(default, '{"vllm": "9.8.7"}')
    assert vllm_python(RolloutSettings()) == str(default)
    assert f"vLLM 9.8.7 at {default}" in _said(tmp_path)[1]
    other = _python(tmp_path / "other/python", '{"vllm": "1.2.3"}')
    monkeypatch.setenv(VARIABLE, str(other))
    assert vllm_python(RolloutSettings()) == str(other)
    assert f"vLLM 1.2.3 at {other}" in _said(tmp_path)[1]


@pytest.mark.parametrize("named", ["/nowhere/python", "/bin/true"])
def test_a_python_that_is_named_and_has_no_vllm_is_a_warning(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, named)
    with pytest.raises(SettingsError) as refused:
        vllm_python(RolloutSettings())
    [finding] = [finding for finding in examine(look_around(tmp_path)) if finding.name == "vllm-python"]
    assert finding.severity == "warning"
    assert str(refused.value) == f"{finding.sentence.partition('refused: ')[2][:-1]}; {finding.remedy}"


def test_an_environment_of_the_default_name_without_vllm_is_a_warning_too(tmp_path: Path) -> None:
    _python(tmp_path / ".venv-vllm/bin/python", '{"vllm": ""}')
    assert _said(tmp_path)[0] == ["vllm-python"]


# -- Ray -------------------------------------------------------------------------------------------------------


def test_auto_without_a_ray_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask_ray(None) is None
    assert ask_ray("auto") == ("auto", NO_RAY)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    wrong, line = _said(tmp_path)
    assert "ray-unreachable" in wrong
    assert "not usable at auto" in line


def test_auto_leads_where_a_run_would_go(tmp_path: Path, listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp/ray").mkdir(parents=True)
    (tmp_path / "tmp/ray/ray_current_cluster").write_text(f"{listening}\n")
    assert ask_ray("auto") == (f"auto ({listening})", "")
    assert ask_ray(None) == (listening, "")
    monkeypatch.setattr(servers, "_rays_running_here", lambda: iter(["127.0.0.1:1"]))
    stale = ask_ray("auto")
    assert stale is not None
    assert stale.address == "auto (127.0.0.1:1)", "the only one that runs goes before what was left behind"
    assert "refused" in stale.problem
    monkeypatch.setenv("RAY_ADDRESS", listening)
    assert ask_ray("auto") == (listening, ""), "Ray, too, lets the variable go before auto"


def test_nobody_is_said_to_have_been_asked_at_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert ask_ray(None) is None
    wrong, line = _said(tmp_path)
    assert wrong == []
    assert " at local" not in line


def test_a_ray_that_runs_is_seen_by_its_raylet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    code = "import time; print('up', flush=True); time.sleep(60)"
    command = ["/anywhere/raylet", "-c", code, "--gcs-address=192.0.2.7:6399", "--node_id=1"]
    process = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert "192.0.2.7:6399" in list(servers._rays_running_here())
    finally:
        process.kill()
        process.wait()


# -- addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["auto", "local", "h", "h:1", "h:", "ray://h:1", "h:123456", "h h:1", "10.0.0.1:6379"]
)
def test_an_address_of_ray_is_one_where_a_run_takes_it(address: str) -> None:
    try:
        RaySettings(address=address)
    except ValidationError:
        with pytest.raises(SettingsError, match=r"^--ray .*; give auto, or HOST:PORT of the head$"):
            check_addresses(address, None)
    else:
        check_addresses(address, None)


@pytest.mark.parametrize("address", ["", "h:70000"])
def test_nor_is_what_no_socket_takes(address: str) -> None:
    with pytest.raises(SettingsError, match=r"^--ray "):
        check_addresses(address, None)


@pytest.mark.parametrize(
    "url",
    ["notaurl", "", "file:///etc/passwd", "ftp://h/", "http://", "http:/h", "http://h:x", "http://h h", "http://["],
)
def test_only_http_and_https_addresses_are_asked(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^--vllm .*; give a URL such as http://HOST:8000$"):
        check_addresses(None, url)
    check_addresses(None, "http://127.0.0.1:8000")
    check_addresses(None, "https://vllm.example/")


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "offbeat.cli", "doctor", "--vllm", "file:///etc/passwd"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "--vllm file:///etc/passwd: not an http or https address" in line


def test_a_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -P -m offbeat.cli doctor"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("offbeat: the current directory: No such file")
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_does_not_speak_http_is_a_warning() -> None:
    def answer(server: socket.socket) -> None:
        asked, _ = server.accept()
        asked.recv(1000)
        asked.sendall(b"what?\n")
        asked.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        answered = ask_vllm(f"http://127.0.0.1:{server.getsockname()[1]}")
    assert answered is not None
    assert answered.problem
