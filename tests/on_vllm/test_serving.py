"""`offbeat serve --engine vllm`: the same answers as the local engine's, from the command as users give it; versions
that are adapters answer beside each other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from tests.faults.conftest import Trial, finish, noise, python_path

ASK = {"model": "policy", "prompt": "12+30=", "max_tokens": 16, "seed": 5, "logprobs": 0}


@contextmanager
def serving(directory: Path, vllm_python: str, *options: str) -> Iterator[OpenAI]:
    """A client of `offbeat serve`, which must end in order."""
    command = [sys.executable, "-m", "offbeat.cli", "serve", str(directory), "--port", "0", "--json"]
    environment = os.environ | {"PYTHONPATH": python_path({}), "OFFBEAT_VLLM_PYTHON": vllm_python}
    process = subprocess.Popen(
        [*command, "--context", "96", "--slots", "4", *options], stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield OpenAI(base_url=told["url"], api_key="none", max_retries=0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_vllm_serves_what_the_local_engine_serves(policy: Path, vllm_python: str) -> None:
    from tests.serve.conftest import Shelf, served

    class Model(Shelf):
        name = "policy"

        def take_up(self, version: int, generator) -> None:
            generator.load(version, self.policy / "model.safetensors")

    async def local() -> list:
        source = Model(0)
        source.policy = policy
        async with served(source) as server:
            client = server.client()
            return [await client.completions.create(**ASK, temperature=t) for t in (0, 1)]

    expected = asyncio.run(local())
    with serving(policy, vllm_python, "--engine", "vllm", "--name", "policy") as client:
        for temperature, local_answer in zip((0, 1), expected, strict=True):
            answer = client.completions.create(**ASK, temperature=temperature)
            assert answer.model == "policy@0"
            assert answer.choices[0].text == local_answer.choices[0].text
            for mine, theirs in zip(
                answer.choices[0].logprobs.token_logprobs, local_answer.choices[0].logprobs.token_logprobs, strict=True
            ):
                assert abs(mine - theirs) < 1e-3
        chunks = list(client.completions.create(**ASK, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected[1].choices[0].text


def test_adapters_of_a_run_answer_beside_each_other(trial: Trial, vllm_python: str) -> None:
    """Sessions of three versions at once, each by its own adapter, as the local engine answers with all weights."""
    pytest.importorskip("peft", reason="a run needs offbeat's own environment: the second half of `make test-vllm`")
    process = trial.begin("learner.lora.rank=4", "learner.iterations=3", "learner.learning_rate=0.05", *noise(trial))
    assert finish(process)["iterations"] == 3
    versions = (1, 2, 3)

    def answers(client: OpenAI) -> list[tuple[str, str, list[float]]]:
        def answer(version: int) -> tuple[str, str, list[float]]:
            headers = {"X-Offbeat-Session": f"episode-{version}"}
            found = client.completions.create(
                **(ASK | {"model": f"run@{version}"}), temperature=1, extra_headers=headers
            )
            return found.model, found.choices[0].text, found.choices[0].logprobs.token_logprobs

        with ThreadPoolExecutor(len(versions)) as together:
            return list(together.map(answer, versions))

    found = []
    for engine in ("local", "vllm"):
        with serving(trial.directory, vllm_python, "--engine", engine, "--max-versions", "3") as client:
            found.append(answers(client))
    local, vllm = found
    assert [model for model, _, _ in vllm] == [f"run@{version}" for version in versions]
    for (_, text, mine), (_, other_text, theirs) in zip(local, vllm, strict=True):
        assert text == other_text
        assert all(abs(one - other) < 1e-3 for one, other in zip(mine, theirs, strict=True))
    assert abs(vllm[0][2][0] - vllm[2][2][0]) > 1e-2, "they are different policies"
