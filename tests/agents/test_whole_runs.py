"""Episodes in real runs: several turns, slow tools, kills and code that misbehaves; audited afterwards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from offbeat import events as e
from offbeat.records import Trajectory
from offbeat.report.read import read_run, read_trajectories
from tests.faults.conftest import Trial, finish, kill, policy, trial  # noqa: F401

PLAY = """
import asyncio
import os
import time

BLOCKED = os.path.join(os.path.dirname(__file__), "blocked")

async def play(prompt, answer, agent):
    messages = [{"role": "user", "content": prompt}]
    said = ""
    for turn in range(3):
        text = await agent.say(messages, max_tokens=6)
        said += text
        if "poison-raise" in prompt:
            raise RuntimeError("boom")
        if "poison-block" in prompt and not os.path.exists(BLOCKED):
            open(BLOCKED, "w").close()
            time.sleep(3600)
        await asyncio.sleep(0.01 * turn)
        messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": f"<{turn}>"}]
    return len(set(said)) % 2 / 2

async def with_openai(prompt, answer, agent):
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=agent.base_url, api_key=agent.api_key)
    messages = [{"role": "user", "content": prompt}]
    first = await client.chat.completions.create(model=agent.model, messages=messages, max_tokens=5)
    text = first.choices[0].message.content
    messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": "!"}]
    second = await client.chat.completions.create(model=agent.model, messages=messages, max_tokens=5, stream=True)
    async for chunk in second:
        text += chunk.choices[0].delta.content or ""
    return len(text) % 2 / 2
"""


def written(trial: Trial, folder: Path, prompts: list[str], function: str = "play") -> tuple[str, ...]:  # noqa: F811
    folder.mkdir(exist_ok=True)
    (folder / "data.jsonl").write_text("\n".join(json.dumps({"prompt": p, "answer": "yes"}) for p in prompts))
    (folder / "my_agents.py").write_text(PLAY)
    trial.environment = {"PYTHONPATH": str(folder)}
    return (
        "task.name=episodes",
        f"task.file={folder / 'data.jsonl'}",
        f"task.episode=my_agents:{function}",
        "task.held_out=4",
        "task.reward_seconds=3.0",
        "rollout.max_new_tokens=40",
    )


def trajectories(directory: Path) -> list[Trajectory]:
    run = read_run(directory)
    return list(read_trajectories(run, run.payloads))


def audited(trial: Trial, batches: int) -> dict[str, Any]:  # noqa: F811
    found = trial.verify(recompute=40)
    assert found["trajectories"] == batches * 16
    assert [found[key] for key in ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations")] == [0] * 4
    return found


def test_episodes_killed_and_resumed_are_trained_on_once_under_one_version(trial: Trial, tmp_path: Path) -> None:  # noqa: F811
    task = written(trial, tmp_path / "code", [f"question {i}" for i in range(60)])
    chosen = ("rollout.lanes=2", "schedule.migration=off", "run.evaluate_every=4", "run.keep_versions=20")
    process = trial.begin(*task, *chosen, "learner.iterations=8")
    trial.wait_for_version(3, process)
    kill(process)
    result = finish(trial.resume())
    assert (result["iterations"], result["lost"]) == (8, 0)
    audited(trial, 8)
    found = trajectories(trial.directory)
    assert all(len(trajectory.spans) == 1 and trajectory.reward is not None for trajectory in found)
    masks = [trajectory.spans[0].loss_mask for trajectory in found]
    assert any(mask is not None and not all(mask) for mask in masks)
    assert all("<0>" in trajectory.text for trajectory in found if len(trajectory.token_ids) > 20)
    versions = {trajectory.version for trajectory in found}
    assert len(versions) > 3
    evaluated = [r.event for r in read_run(trial.directory).records if isinstance(r.event, e.Evaluated)]
    assert [event.version for event in evaluated] == [0, 4, 8]


def test_any_openai_client_plays(trial: Trial, tmp_path: Path) -> None:  # noqa: F811
    task = written(trial, tmp_path / "code", [f"question {i}" for i in range(60)], "with_openai")
    seconds = "task.reward_seconds=60"  # the first episode imports the client, and all others wait for that
    assert finish(trial.begin(*task, seconds, "learner.iterations=2"))["iterations"] == 2
    audited(trial, 2)
    assert all("!" in trajectory.text for trajectory in trajectories(trial.directory))


def test_code_that_raises_or_blocks_costs_its_episodes_only(trial: Trial, tmp_path: Path) -> None:  # noqa: F811
    prompts = [f"question {i}" for i in range(30)] + ["poison-raise 0", "poison-raise 1", "poison-block"]
    task = written(trial, tmp_path / "code", prompts)
    process = trial.begin(*task, "learner.iterations=6", "run.max_quarantined_in_a_row=20")
    result = finish(process)
    assert (result["iterations"], result["lost"]) == (6, 0)
    found = audited(trial, 6)
    assert "boom" in " | ".join(found["quarantine_reasons"])
    failed = Counter(
        "blocked" if "kept the others" in r.event.reason else "raised"
        for r in read_run(trial.directory).records
        if isinstance(r.event, e.GenerationFailed)
    )
    assert failed["blocked"] > 0


def test_the_python_tool_is_called_and_its_output_read(trial: Trial) -> None:  # noqa: F811
    """An untrained policy now and then writes a program; what it reads back is masked."""
    chosen = ("task.name=python-tool", "task.held_out=2", "rollout.max_new_tokens=60", "learner.iterations=2")
    assert finish(trial.begin(*chosen))["iterations"] == 2
    audited(trial, 2)
    called = [t for t in trajectories(trial.directory) if "<" in t.text and t.spans[0].loss_mask]
    assert called
    for trajectory in called:
        assert any(word in trajectory.text for word in ("Error", ";"))
