"""Run directories, also of a run that is going on, and model directories; the command from start to signal."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from offbeat import events as e
from offbeat.backends.weights import Canary, publish
from offbeat.errors import EngineError, SettingsError, WeightsError
from offbeat.live.runlog import RunLog
from offbeat.rollout.engine import Engine
from offbeat.serve.options import default_options
from offbeat.serve.sources import ModelDirectory, RunVersions, source_of
from offbeat.settings import load_settings
from offbeat.testing.empty_report import EMPTY_REPORT

from .conftest import policy, served

PROMPT, RESPONSE = (4, 5, 6), (7, 8)


def put_version(directory: Path, version: int) -> str:
    """Publish the weights of seed `version`, with the canary that they give."""
    engine = Engine(policy(), slots=1, context=32)
    engine.load(0, policy(version) / "model.safetensors")
    canary = Canary(PROMPT, RESPONSE, tuple(engine.score(0, PROMPT, RESPONSE)))

    def save(into: Path) -> str:
        shutil.copy(policy(version) / "model.safetensors", into)
        from offbeat.backends.weights import file_digest

        return file_digest(into / "model.safetensors")

    return publish(directory, version, save, lambda: canary).digest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory that has just begun."""
    directory = tmp_path / "run"
    shutil.copytree(policy(), directory / "policy")
    settings = load_settings(None, ["rollout.context=64", "rollout.max_new_tokens=32"])
    meta = {"settings": settings.model_dump_json(), "offbeat_version": "0", "digest_0": put_version(directory, 0)}
    RunLog.create(directory / "run.sqlite", meta).close()
    return directory


def train(directory: Path, version: int, digest: str | None = None) -> None:
    log = RunLog.open(directory / "run.sqlite")
    log.record(
        e.Trained(version, digest or put_version(directory, version), EMPTY_REPORT, 0.0, 1.0), float(version), []
    )
    log.close()


def test_versions_of_a_run_appear_as_they_are_published(run: Path) -> None:
    async def scenario() -> None:
        source = RunVersions(run)
        assert source.context == 64
        async with served(source) as server:
            ask: dict[str, Any] = {"model": "run", "prompt": "1+1=", "max_tokens": 4}
            pinned = server.client(session="s")
            assert (await pinned.completions.create(**ask)).model == "run@0"
            for version in (1, 2):
                train(run, version)
                await server.until(lambda version=version: server.hub.pins.newest == version)
            assert (await server.client().completions.create(**ask)).model == "run@2"
            assert (await pinned.completions.create(**ask)).model == "run@0"
            shutil.rmtree(run / "versions" / "000001")
            await server.until(lambda: server.hub.pins.published == {0, 2})
            assert [m.id async for m in server.client().models.list()] == ["run", "run@2", "run@0"]

    asyncio.run(scenario())


def test_a_version_that_is_not_what_the_log_says_is_not_served(run: Path) -> None:
    """Neither one with other weights than announced nor one whose log-probs the engine does not give."""

    async def scenario() -> None:
        async with served(RunVersions(run)) as server:
            put_version(run, 1)
            train(run, 1, digest="0" * 64)
            await server.until(lambda: server.versions("refused") == [1])
            put_version(run, 2)
            manifest = json.loads((run / "versions" / "000002" / "manifest.json").read_text())
            manifest["canary"]["target_logprobs"][0] -= 0.1
            (run / "versions" / "000002" / "manifest.json").write_text(json.dumps(manifest))
            train(run, 2, digest=manifest["digest"])
            await server.until(lambda: server.versions("refused") == [1, 2])
            assert server.hub.pins.held == {0}
            done = await server.client().completions.create(model="run", prompt="1", max_tokens=1)
            assert done.model == "run@0"

    asyncio.run(scenario())


def test_a_run_without_weights_is_not_waited_for(run: Path) -> None:
    shutil.rmtree(run / "versions")

    async def scenario() -> None:
        async with served(RunVersions(run)):
            raise AssertionError("it is served")

    with pytest.raises(EngineError, match="no version whose weights are there"):
        asyncio.run(scenario())


def test_a_model_directory_is_version_0(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(policy(), directory)
    source = source_of(directory)
    assert isinstance(source, ModelDirectory)

    async def scenario() -> None:
        async with served(source) as server:
            done = await server.client().completions.create(model="model", prompt="1", max_tokens=1)
            assert done.model == "model@0"

    asyncio.run(scenario())
    shutil.copy(policy(1) / "model.safetensors", directory)
    with pytest.raises(WeightsError, match="has changed"):
        source.take_up(0, Engine(directory, slots=1, context=32))


def test_what_is_neither_run_nor_model_is_refused(tmp_path: Path) -> None:
    for directory, words in ((tmp_path / "no", "no such directory"), (tmp_path, "neither a run nor a model")):
        with pytest.raises(SettingsError, match=words):
            source_of(directory)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"model\.safetensors"):
        source_of(tmp_path)


def test_options_that_do_not_fit_the_model_are_refused() -> None:
    source = ModelDirectory(policy())
    assert default_options(source).context == 2048
    with pytest.raises(SettingsError, match="takes 4096 tokens"):
        default_options(source, context=5000)
    with pytest.raises(SettingsError, match="keep-versions"):
        default_options(source, keep_versions=3, max_versions=2)
    assert default_options(source, max_versions=1).keep_versions == 1


def test_the_command_serves_until_it_is_told_to_stop(run: Path, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    command = [sys.executable, "-m", "offbeat.cli", "serve", str(run), "--port", "0", "--json"]
    environment = os.environ | {"OFFBEAT_API_KEY": "secret-key", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--record", str(record), "--name", "mine"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["model"] == "mine"
        assert said["version"] == 0
        request = urllib.request.Request(
            f"{said['url']}/completions",
            data=json.dumps({"model": "mine", "prompt": "1+1=", "max_tokens": 3}).encode(),
            headers={"Content-Type": "application/json", "Authorization": "Bearer secret-key:s-1"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["offbeat"] == {"version": 0, "session": "s-1"}
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert rest == ""
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["VersionChanged", "CallEnded"]
    assert rows[1]["session"] == "s-1"
    assert rows[1]["versions"] == [0]
    assert "secret" not in record.read_text() + errors


def test_vllm_holds_one_version_of_all_weights_and_several_adapters() -> None:
    source = ModelDirectory(policy())
    assert default_options(source, "vllm").max_versions == default_options(source, "vllm").keep_versions == 1
    for given, words in ({"max_versions": 2}, "max-versions"), ({"lanes": 2}, "lanes"):
        with pytest.raises(SettingsError, match=words):
            default_options(source, "vllm", **given)
    source.lora_rank = 4
    assert default_options(source, "vllm", max_versions=5).max_versions == 5
