"""Claim: 200 concurrent agent sessions across 20 publishes; no session ever sees two versions, and none is lost.

    python runs/serve_sessions.py [sessions] [publishes] [lanes]

A server process is given a run directory in which versions are published while agents talk to it through the `openai`
client: several turns an episode, with the latency of a tool between them, one episode after the other until the last
version is published; every seventh episode breaks one of its streams off and asks again. The verdict is read from the
server's own record, where the engine says which version sampled. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from offbeat import events as e
from offbeat.backends.weights import Canary, file_digest, publish
from offbeat.live.runlog import RunLog
from offbeat.models.presets import Preset, build_model, write_policy
from offbeat.rollout.engine import Engine
from offbeat.settings import load_settings
from offbeat.testing.empty_report import EMPTY_REPORT

TINY = Preset(width=32, hidden=64, layers=2, heads=2, kv_heads=2)
PROMPT, RESPONSE = (4, 5, 6), (7, 8)
TURNS = range(4, 9)
TOOL_SECONDS = 2.0
PUBLISH_SECONDS = 1.5


class Trainer:
    """A run that publishes: real weights, manifests and canaries, a real run log; what it learns does not matter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        write_policy(build_model(TINY, 0), directory / "policy")
        settings = load_settings(None, ["rollout.context=512", "rollout.max_new_tokens=64"])
        meta = {"settings": settings.model_dump_json(), "offbeat_version": "0", "digest_0": self._put(0)}
        RunLog.create(directory / "run.sqlite", meta).close()

    def _put(self, version: int) -> str:
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / "model"
            write_policy(build_model(TINY, version), made)
            weights = made / "model.safetensors"
            engine = Engine(self.directory / "policy", slots=1, context=32)
            engine.load(0, weights)
            canary = Canary(PROMPT, RESPONSE, tuple(engine.score(0, PROMPT, RESPONSE)))

            def save(into: Path) -> str:
                shutil.copy(weights, into)
                return file_digest(into / "model.safetensors")

            return publish(self.directory, version, save, lambda: canary).digest

    def train(self, version: int) -> None:
        digest = self._put(version)
        log = RunLog.open(self.directory / "run.sqlite")
        log.record(e.Trained(version, digest, EMPTY_REPORT, 0.0, 1.0), float(version), [])
        log.close()


async def agent(url: str, number: int, over: asyncio.Event) -> list[dict[str, Any]]:
    """Episodes one after the other, at least one: what their clients saw."""
    await asyncio.sleep(random.Random(number).random())
    played = [await episode(url, number)]
    while not over.is_set():
        played.append(await episode(url, number + 1000 * len(played)))
    return played


async def episode(url: str, number: int) -> dict[str, Any]:
    draws = random.Random(number)
    client = AsyncOpenAI(base_url=url, api_key=f"none:agent-{number}", max_retries=10, timeout=300)
    turns = draws.choice(TURNS)
    leaves = draws.randrange(turns) if number % 7 == 0 else -1
    messages: list[Any] = [{"role": "user", "content": f"{number}+1="}]
    seen = set()
    for turn in range(turns):
        ask = {"model": "run", "messages": messages, "max_tokens": draws.randint(8, 32), "seed": number * 100 + turn}
        if turn == leaves:
            stream = await client.chat.completions.create(**ask, stream=True)
            async for chunk in stream:
                seen.add(chunk.model)
                break
            await stream.close()
        done = await client.chat.completions.create(**ask)
        seen.add(done.model)
        messages += [
            {"role": "assistant", "content": done.choices[0].message.content},
            {"role": "tool", "content": f" {turn} "},
        ]
        await asyncio.sleep(draws.expovariate(1 / TOOL_SECONDS))
    await client.close()
    return {"session": f"agent-{number}", "turns": turns, "models": sorted(seen)}


async def everything(url: str, trainer: Trainer, sessions: int, publishes: int) -> list[Any]:
    async def publisher() -> None:
        for version in range(1, publishes + 1):
            await asyncio.sleep(PUBLISH_SECONDS)
            await asyncio.to_thread(trainer.train, version)

        over.set()

    over = asyncio.Event()
    publishing = asyncio.create_task(publisher())
    told = await asyncio.gather(*(agent(url, i, over) for i in range(sessions)), return_exceptions=True)
    await publishing
    return [one for each in told for one in (each if isinstance(each, list) else [each])]


def verdict(told: list[Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the server's record says, beside what the clients saw."""
    episodes = [one for one in told if not isinstance(one, BaseException)]
    calls = [row for row in rows if row["event"] == "CallEnded"]
    versions, answered = defaultdict(set), defaultdict(int)
    opened: dict[str, float] = {}
    closed: dict[str, float] = {}
    for call in calls:
        versions[call["session"]] |= {*call["versions"], call["version"]}
        answered[call["session"]] += call["outcome"] in ("stop", "length")
        opened.setdefault(call["session"], call["at"] - call["seconds"])
        closed[call["session"]] = call["at"]
    held = [row["version"] for row in rows if row["event"] == "VersionChanged" and row["what"] == "held"]
    return {
        "sessions": len(told),
        "sessions_lost": len(told) - len(episodes),
        "errors": sorted({f"{type(one).__name__}: {one}" for one in told if isinstance(one, BaseException)}),
        "sessions_with_two_versions_by_record": sum(len(v) > 1 for v in versions.values()),
        "sessions_with_two_versions_by_clients": sum(len(one["models"]) > 1 for one in episodes),
        "turns": sum(one["turns"] for one in episodes),
        "calls": len(calls),
        "calls_by_outcome": {o: sum(c["outcome"] == o for c in calls) for o in sorted({c["outcome"] for c in calls})},
        "turns_without_an_answer": sum(max(0, one["turns"] - answered[one["session"]]) for one in episodes),
        "versions_held_in_turn": held,
        "versions_sampled_from": sorted(set().union(*versions.values())),
        "most_sessions_at_once": _most([*((t, 1) for t in opened.values()), *((t, -1) for t in closed.values())]),
        "most_calls_at_once": _most([m for c in calls for m in ((c["at"] - c["seconds"], 1), (c["at"], -1))]),
        "lane_moves_of_sessions": _lane_moves(calls),
    }


def _most(changes: list[tuple[float, int]]) -> int:
    """The most at once of what begins (+1) and ends (-1)."""
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _lane_moves(calls: list[dict[str, Any]]) -> int:
    """How often a session's call was on another lane than its call before."""
    lanes = defaultdict(list)
    for call in calls:
        lanes[call["session"]] += call["lanes"]
    return sum(a != b for each in lanes.values() for a, b in pairwise(each))


def main(sessions: int = 200, publishes: int = 20, lanes: int = 2) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        trainer, record = Trainer(Path(scratch) / "run"), Path(scratch) / "calls.jsonl"
        command = [sys.executable, "-m", "offbeat.cli", "serve", str(trainer.directory), "--port", "0", "--json"]
        command += ["--record", str(record), "--max-versions", "32", "--lanes", str(lanes), "--lease", "60"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            began = time.monotonic()
            told = asyncio.run(everything(url, trainer, sessions, publishes))
            seconds = time.monotonic() - began
        finally:
            process.terminate()
            process.wait()
        rows = [json.loads(line) for line in record.read_text().splitlines()]
    found = verdict(told, rows)
    print(json.dumps({"lanes": lanes, "publishes": publishes, "seconds": round(seconds, 1)} | found, indent=1))
    broken = found["sessions_lost"] or found["sessions_with_two_versions_by_record"] or found["turns_without_an_answer"]
    sys.exit(1 if broken or found["sessions_with_two_versions_by_clients"] else 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
