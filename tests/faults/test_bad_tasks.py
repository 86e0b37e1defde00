"""Rewards that raise, hang or lie, prompts that do not fit, batches without signal, gradients that overflow: reported,
never a reward of 0 and never a step.
"""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from offbeat.events import Trained

from .conftest import NOISE, Trial, finish, write_task

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


def test_poison_prompts_are_quarantined_with_their_reason(trial: Trial, tmp_path: Path) -> None:
    poison = [f"{kind} {i}" for kind in ("poison-raise", "poison-nan") for i in range(3)] + ["poison-hang"]
    poison += [f"{i} long " * 40 for i in range(3)]
    prompts = poison + [f"question {i}" for i in range(30)]
    trial.environment = {"PYTHONPATH": str(tmp_path)}
    task = write_task(tmp_path, prompts, REWARD)
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
    [poison] = [finding for finding in trial.explain()["findings"] if finding["name"] == "poison-prompt"]
    assert "prompts were quarantined" in poison["sentence"]


def test_all_prompts_failing_ends_the_run_with_a_reason(trial: Trial, tmp_path: Path) -> None:
    trial.environment = {"PYTHONPATH": str(tmp_path)}
    task = write_task(tmp_path, [f"poison-raise {i}" for i in range(40)], REWARD)
    process = trial.begin("learner.iterations=8", *task)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "boom" in err
    [failed] = [finding for finding in trial.explain()["findings"] if finding["name"] == "failed"]
    assert "boom" in failed["sentence"]


def test_equal_rewards_everywhere_train_on_without_harm(trial: Trial) -> None:
    """An untrained policy is never right: every advantage is zero, every update is empty, nothing is NaN."""
    result = finish(trial.begin("learner.iterations=4", "task.name=addition"))
    assert result["iterations"] == 4
    assert result["exact_match_before"] == result["exact_match_after"] == 0.0


def write_explosive_policy(directory: Path) -> None:
    """It samples well, but its gradient overflows: every embedding is 0, so every logit is 0 and all tokens are equally
    likely; yet on the way back through the RMS norm of a zero vector a gradient grows by 1 / sqrt(eps) = 1e18, and
    there are three such norms in a row.
    """
    import torch
    from transformers import Qwen3ForCausalLM

    from offbeat.models.presets import Preset, build_model, write_policy

    config = build_model(Preset(width=32, hidden=64, layers=2, heads=2, kv_heads=1), seed=0).config
    config.tie_word_embeddings, config.rms_norm_eps = False, 1e-36
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()
    write_policy(model, directory)


def test_learning_that_blows_up_stops_with_a_clear_message(trial: Trial, tmp_path: Path) -> None:
    """Updates are skipped, the weights stay as they were, every report can be read, the run ends after so many."""
    trial.environment = {"PYTHONPATH": str(tmp_path)}
    trial.policy = tmp_path / "explosive"
    write_explosive_policy(trial.policy)
    task = write_task(tmp_path, [f"question {i}" for i in range(40)], NOISE)
    process = trial.begin("learner.iterations=50", "learner.max_consecutive_skips=3", *task)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    complaints = [line for line in err.splitlines() if line.startswith("offbeat:")]
    assert len(complaints) == 1, err
    assert "the last 3 updates had a loss or gradient that is not finite" in complaints[0]
    assert json.loads(out)["iterations"] == trial.version() == 3
    assert trial.verify()["outcome"] == "failed"
    told = {finding["name"]: finding["severity"] for finding in trial.explain()["findings"]}
    assert (told["failed"], told["not-finite"]) == ("error", "warning")
    with closing(sqlite3.connect(trial.directory / "run.sqlite")) as db, db:
        rows = db.execute("SELECT body FROM events WHERE kind = 'Trained' ORDER BY seq").fetchall()
        [(digest,)] = db.execute("SELECT value FROM meta WHERE key = 'digest_0'")
    trained = [msgspec.json.decode(body, type=Trained) for (body,) in rows]
    assert [event.report.skipped_updates for event in trained] == [1, 1, 1]
    assert [event.report.consecutive_skips for event in trained] == [1, 2, 3]
    assert [event.digest for event in trained] == [digest] * 3
    numbers = [x for event in trained for x in msgspec.structs.astuple(event.report) if isinstance(x, int | float)]
    assert all(map(math.isfinite, numbers))


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
