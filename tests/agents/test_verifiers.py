"""Environments of the real `verifiers` library: their tools, turns and rubric, alone and in a whole run."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from shutil import copytree

import pytest

from offbeat.agents.episodes import session_of
from offbeat.agents.process import EndpointAgent
from offbeat.errors import EngineError, SettingsError, TaskError
from offbeat.models.prompts import encoded_prompt
from offbeat.models.tokens import load_tokenizer
from offbeat.ports import EpisodeTask
from offbeat.report.read import read_run, read_trajectories
from offbeat.settings import VerifiersTask, load_settings, settings_from
from offbeat.tasks import make_task
from tests.faults.conftest import Trial, finish, kill, policy, trial  # noqa: F401
from tests.serve.test_tools import TEMPLATE, Scripted, telling

pytest.importorskip("verifiers", reason="verifiers 0.2 or 0.3 is not installed: pip install 'offbeat[verifiers]'")
pytestmark = pytest.mark.xdist_group("verifiers")
"""Importing it takes seconds: in one process of the session only."""
ENVIRONMENTS = Path(__file__).parent / "environments"
CALL = '<tool_call>{"name": "add", "arguments": {"a": %d, "b": %d}}</tool_call>'


@pytest.fixture(autouse=True)
def findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ENVIRONMENTS))


def task(**options: object) -> EpisodeTask:
    made = VerifiersTask(environment="adding-up", options=options, held_out=4)
    return make_task(made, 0)  # type: ignore[return-value]


def played(script: tuple[str, ...], **options: object) -> tuple[float, Scripted]:
    """Reward and endpoint of an episode whose policy says what the script says."""
    made = task(**options)
    prompt = encoded_prompt(load_tokenizer(telling()), made, 0)
    served = Scripted(*script, prompt=prompt)

    async def scenario() -> float:
        async with served.listening() as url:
            agent = EndpointAgent(url, f"{served.key}:{session_of(served.asked)}", None)
            return await made.episode(prompt, agent)

    return asyncio.run(scenario()), served


def test_a_tool_is_called_and_the_rubric_pays() -> None:
    prompt = task(turns=2).prompt(0)
    a, b = prompt.text.removesuffix("?").split("+")
    reward, served = played((CALL % (int(a), int(b)), prompt.answer), turns=2)
    assert 0.5 <= reward < 1.0
    text = served.tokenizer.decode(
        list(served.heard[1].context_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert text.startswith("Tadd ")
    assert f"={prompt.answer};" in text, "what the tool gave is read"
    assert 0 < sum(served.episode.mask) < len(served.episode.mask)


def test_the_example_pays_for_the_last_number_said(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    chosen = load_settings(examples / "verifiers_products.toml").task
    made: EpisodeTask = make_task(chosen, 0)  # type: ignore[assignment]
    prompt = encoded_prompt(load_tokenizer(telling()), made, 0)
    a, b = (int(word) for word in prompt.text.split("What is ")[1].split("?")[0].split(" * "))
    assert prompt.answer == str(a * b)
    assert len(made.held_out(16)) == 16

    async def scored(said: str) -> float:
        served = Scripted(said, prompt=prompt)
        async with served.listening() as url:
            return await made.episode(prompt, EndpointAgent(url, f"{served.key}:{session_of(served.asked)}", None))

    rewards = [asyncio.run(scored(said)) for said in (f"{a * b}", f"{a} * {b} = {a * b}", f"{a * b + 1}", "No idea.")]
    assert rewards[0] == 1.0 > rewards[1] > 0.9 > 0.1 >= rewards[2] > rewards[3] > 0.0


def test_saying_nothing_is_scored_and_a_broken_tool_is_a_failure() -> None:
    reward, _ = played(("",), turns=2)
    assert 0.0 <= reward <= 0.5
    with pytest.raises(EngineError, match="adding-up"):
        played((CALL % (1, 2), "3"), turns=2, tool_error=True)


def test_training_and_exam_ask_differently_and_signals_stay_the_runs() -> None:
    kept = signal.getsignal(signal.SIGTERM)
    made, again = task(questions=9), task(questions=9)
    assert signal.getsignal(signal.SIGTERM) is kept
    asked = [made.prompt(i).text for i in range(10)]
    assert sorted(asked[:5]) == sorted(asked[5:]) == sorted({*asked})
    assert not {*asked} & {prompt.text for prompt in made.held_out(4)}
    assert asked == [again.prompt(i).text for i in range(10)]


def test_what_is_not_there_is_one_line() -> None:
    with pytest.raises(TaskError, match="nowhere-at-all"):
        make_task(VerifiersTask(environment="nowhere-at-all"), 0)
    with pytest.raises(TaskError, match="too few prompts"):
        task(questions=3)
    with pytest.raises(SettingsError, match=r"model\.path is empty"):
        settings_from({"task": {"name": "verifiers", "environment": "adding-up"}})


def test_an_environment_killed_and_resumed_is_trained_on_under_one_version(trial: Trial, tmp_path: Path) -> None:  # noqa: F811
    told = tmp_path / "policy"
    copytree(trial.policy, told)
    config = told / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
    trial.policy = told
    trial.environment = {"PYTHONPATH": str(ENVIRONMENTS)}
    process = trial.begin(
        "task.name=verifiers",
        "task.environment=adding-up",
        "task.held_out=2",
        "rollout.max_new_tokens=40",
        "learner.iterations=2",
    )
    trial.wait_for_version(1, process)
    kill(process)
    result = finish(trial.resume())
    assert (result["iterations"], result["lost"]) == (2, 0)
    found = trial.verify(recompute=20)
    assert [found[key] for key in ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations")] == [0] * 4
    run = read_run(trial.directory)
    trajectories = list(read_trajectories(run, run.payloads))
    assert len(trajectories) == found["trajectories"] > 0
    assert all(len(trajectory.spans) == 1 and trajectory.reward is not None for trajectory in trajectories)
    masks = [trajectory.spans[0].loss_mask for trajectory in trajectories]
    assert any(mask is not None and not all(mask) for mask in masks), "what the environment said is masked"
