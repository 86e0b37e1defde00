"""Rewards that raise, hang or lie, prompts that do not fit, batches without signal: reported, never a reward of 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Trial, finish

pytestmark = pytest.mark.slow

REWARD = """
import time

def reward(prompt, answer, response):
    if "poison-raise" in prompt and len(response) > 6:
        raise RuntimeError("boom")
    if "poison-hang" in prompt and len(response) > 6:
        time.sleep(3600)
    if "poison-nan" in prompt and len(response) > 6:
        return float("nan")
    return float(response == answer)
"""


def write_task(folder: Path, prompts: list[str]) -> tuple[str, ...]:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"prompt": text, "answer": "yes"}) for text in prompts]
    (folder / "data.jsonl").write_text("\n".join(lines))
    (folder / "my_rewards.py").write_text(REWARD)
    return (
        "task.name=jsonl",
        f"task.file={folder / 'data.jsonl'}",
        "task.reward=my_rewards:reward",
        "task.held_out=4",
        "task.reward_seconds=1.0",
    )


def test_poison_prompts_are_quarantined_with_their_reason(trial: Trial, tmp_path: Path) -> None:
    kinds = ("poison-raise", "poison-hang", "poison-nan")
    poison = [f"{kind} {i}" for kind in kinds for i in range(3)] + [f"{i} long " * 40 for i in range(3)]
    prompts = poison + [f"question {i}" for i in range(28)]
    trial.environment = {"PYTHONPATH": str(tmp_path)}
    task = write_task(tmp_path, prompts)
    process = trial.begin("learner.iterations=8", *task, "run.max_quarantined_in_a_row=20")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["lost"] == 0
    found = trial.verify()
    assert found["trajectories"] == 8 * 16
    reasons = " | ".join(found["quarantine_reasons"])
    for sign in ("boom", "ran out of time", "nan", "fit into"):
        assert sign in reasons, reasons


def test_all_prompts_failing_ends_the_run_with_a_reason(trial: Trial, tmp_path: Path) -> None:
    trial.environment = {"PYTHONPATH": str(tmp_path)}
    task = write_task(tmp_path, [f"poison-raise {i}" for i in range(40)])
    process = trial.begin("learner.iterations=8", *task)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "boom" in err


def test_equal_rewards_everywhere_train_on_without_harm(trial: Trial) -> None:
    """An untrained policy is never right: every advantage is zero, every update is empty, nothing is NaN."""
    result = finish(trial.begin("learner.iterations=4", "task.name=addition"))
    assert result["iterations"] == 4
    assert result["exact_match_before"] == result["exact_match_after"] == 0.0


def test_learning_that_blows_up_stops_with_a_clear_message(trial: Trial) -> None:
    process = trial.begin("learner.iterations=300", "learner.learning_rate=0.99", "learner.warmup_iterations=0",
                          "learner.max_gradient_norm=1e30")  # fmt: skip
    _, err = process.communicate(timeout=200)
    if process.returncode == 0:
        pytest.skip("this policy survived a learning rate of 0.99")
    assert process.returncode == 1
    assert "finite" in err


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "has no lines"), ('{"prompt": "a"}', "answer"), ("not json", "line 1")],
)
def test_unusable_files_are_one_line_and_leave_nothing(trial: Trial, tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "data.jsonl").write_text(content)
    process = trial.begin("task.name=jsonl", f"task.file={tmp_path / 'data.jsonl'}", "task.held_out=4")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert out == ""
    assert words in err
    assert len([line for line in err.strip().splitlines() if line.startswith("offbeat:")]) == 1
    assert not trial.directory.exists()
