"""`offbeat serve --engine vllm`: the same answers as the local engine's, from the command as users give it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.faults.conftest import python_path

ASK = {"model": "policy", "prompt": "12+30=", "max_tokens": 16, "seed": 5, "logprobs": 0}


def test_vllm_serves_what_the_local_engine_serves(policy: Path, vllm_python: str) -> None:
    from openai import OpenAI

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
    command = [sys.executable, "-m", "offbeat.cli", "serve", str(policy), "--engine", "vllm", "--port", "0", "--json"]
    options = ["--context", "96", "--slots", "4", "--name", "policy"]
    environment = os.environ | {"PYTHONPATH": python_path({}), "OFFBEAT_VLLM_PYTHON": vllm_python}
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, env=environment, text=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        client = OpenAI(base_url=told["url"], api_key="none", max_retries=0)
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
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
