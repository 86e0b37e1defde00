"""Log-probs computed again from kept weights: true ones agree, a lie shows, changed weights are refused.

The oracle is plain `transformers`: one sequence at a time, log-softmax of the logits over the temperature.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from offbeat import events as e
from offbeat.errors import WeightsError
from offbeat.records import Span, Trajectory
from offbeat.report import recompute as module
from offbeat.report.audit import audit
from offbeat.report.read import read_run, read_trajectories
from offbeat.report.recompute import kept_weights, recompute
from tests.learner.conftest import save_model
from tests.reference import grpo
from tests.report.simulated_run import EditableRun, simulated_run, small_settings

KEPT = (2, 5)


def oracle(model: torch.nn.Module, prompt: tuple[int, ...], trajectory: Trajectory, made: EditableRun) -> Trajectory:
    """The trajectory as the model would have stated it, with the kept ids where the distribution is cut."""
    rollout = made.settings.rollout
    ids = prompt + trajectory.token_ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    logprobs, supports = [], []
    for position, token in enumerate(trajectory.token_ids, start=len(prompt) - 1):
        last = logits[position].tolist()
        kept = tuple(range(len(last)))
        if rollout.top_k:
            kept = tuple(sorted({*grpo.kept_ids(last, rollout.temperature, rollout.top_k, rollout.top_p), token}))
        logprobs.append(grpo.logprob(last, token, rollout.temperature, kept))
        supports.append(kept)
    changes = {"behaviour_logprobs": tuple(logprobs), "behaviour_support": tuple(supports) if rollout.top_k else None}
    return msgspec.structs.replace(trajectory, spans=(msgspec.structs.replace(trajectory.spans[0], **changes),))


def with_weights(directory: Path, **rollout: object) -> tuple[EditableRun, Path]:
    """A run whose versions 2 and 5 are two random models that are still kept, and whose payloads are true to them."""
    made = simulated_run(settings=small_settings(**{f"rollout__{key}": value for key, value in rollout.items()}))
    save_model(directory / "policy", max_position_embeddings=256)
    for version in KEPT:
        model = AutoModelForCausalLM.from_pretrained(directory / "policy", dtype=torch.float32).eval()
        torch.manual_seed(version)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        where = directory / "versions" / f"{version:06d}"
        model.save_pretrained(where)
        digest = hashlib.sha256((where / "model.safetensors").read_bytes()).hexdigest()
        made.replace_event(made.where(e.Trained, version - 1), digest=digest)
        for key, trajectory in made.payloads.items():
            if trajectory.version == version:
                prompt = made.prompt_ids[key[0] // made.settings.schedule.group_size]
                made.payloads[key] = oracle(model, prompt, trajectory, made)
    made.write(directory)
    return made, directory


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[EditableRun, Path]:
    torch.set_num_threads(1)
    return with_weights(tmp_path_factory.mktemp("honest"), temperature=0.7)


@pytest.fixture
def copy(honest: tuple[EditableRun, Path], tmp_path: Path) -> Path:
    """A run directory that a test may damage; its database is the honest one."""
    shutil.copytree(honest[1], tmp_path / "run")
    return tmp_path / "run"


def spliced(made: EditableRun, directory: Path, schedule: str) -> set[tuple[int, int]]:
    """Write the run again as one of another schedule, every third trajectory of version 2 gone on under version 5.

    Returns the (trajectory_id, attempt) of those, of two spans each, true to the version that sampled each.
    """
    models = {
        version: AutoModelForCausalLM.from_pretrained(directory / "versions" / f"{version:06d}", dtype=torch.float32)
        for version in KEPT
    }
    payloads, several = dict(made.payloads), set()
    for key, trajectory in made.payloads.items():
        half = len(trajectory.token_ids) // 2
        if trajectory.version != KEPT[0] or key[0] % 3 or not half:
            continue
        prompt = made.prompt_ids[key[0] // made.settings.schedule.group_size]
        parts = []
        for version, part in zip(KEPT, (slice(None, half), slice(half, None)), strict=True):
            told = oracle(models[version].eval(), prompt, trajectory, made).spans[0]
            parts.append(Span(version, told.token_ids[part], told.behaviour_logprobs[part]))
        payloads[key] = msgspec.structs.replace(trajectory, spans=tuple(parts))
        several.add(key)
    settings = small_settings(rollout__temperature=made.settings.rollout.temperature, schedule__name=schedule)
    EditableRun(settings, made.rows, payloads, made.rewards, made.prompt_ids).write(directory)
    return several


def consumed_of_kept(made: EditableRun, size: int) -> int:
    """Consumed trajectories of the kept versions, counted from the commands."""
    versions, trained = {}, set()
    for row in made.rows:
        for command in row.commands:
            if isinstance(command, e.Generate):
                versions[command.group_id] = command.version
            if isinstance(command, e.Train):
                trained |= set(command.group_ids)
    return size * sum(versions[group] in KEPT for group in trained)


def test_honest_payloads_agree(honest: tuple[EditableRun, Path]) -> None:
    made, directory = honest
    run = read_run(directory)
    done, error = recompute(run, 10_000, seed=0)
    assert done == consumed_of_kept(made, made.settings.schedule.group_size) > 0
    assert error is not None
    assert 0 < error < 1e-4
    assert audit(run).with_recomputed(20, done, error).ok


def test_cut_distributions_agree(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    _, directory = with_weights(tmp_path, top_k=4)
    done, error = recompute(read_run(directory), 12, seed=1)
    assert done == 12
    assert error is not None
    assert error < 1e-4


def test_each_of_several_spans_is_computed_by_its_own_version(
    honest: tuple[EditableRun, Path], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = honest
    several = spliced(made, copy, "partial")
    assert several
    run = read_run(copy)
    done, error = recompute(run, 10_000, seed=0)
    assert done == consumed_of_kept(made, made.settings.schedule.group_size)
    assert error is not None
    assert error < 1e-4
    monkeypatch.setattr(module, "_is_whole", lambda payload: len(payload.span_versions) == 2)
    assert 0 < recompute(run, 10_000, seed=0)[0] <= len(several)
    shutil.rmtree(copy / "versions" / "000005")
    assert recompute(run, 10_000, seed=0) == (0, None), "one of the two versions is not kept"


def test_a_span_of_another_version_than_it_says_shows(honest: tuple[EditableRun, Path], copy: Path) -> None:
    made, _ = honest
    several = spliced(made, copy, "partial")
    lies = dict(read_payloads(copy))
    for key in several:
        first, second = lies[key].spans
        swapped = (first, msgspec.structs.replace(second, version=2))
        lies[key] = msgspec.structs.replace(lies[key], spans=swapped)
    settings = read_run(copy).settings
    EditableRun(settings, made.rows, lies, made.rewards, made.prompt_ids).write(copy)
    _, error = recompute(read_run(copy), 10_000, seed=0)
    assert error is not None
    assert error > 0.01


def read_payloads(directory: Path) -> dict[tuple[int, int], Trajectory]:
    run = read_run(directory)
    return dict(zip(run.payloads, read_trajectories(run, run.payloads), strict=True))


@pytest.mark.parametrize("schedule", ["in-flight", "multi-version"])
def test_several_spans_cannot_be_computed_where_no_schedule_prefilled_again(
    honest: tuple[EditableRun, Path], copy: Path, schedule: str
) -> None:
    made, _ = honest
    several = spliced(made, copy, schedule)
    size = made.settings.schedule.group_size
    consumed = {g for row in made.rows for c in row.commands if isinstance(c, e.Train) for g in c.group_ids}
    attempts = {(t, a) for t, a in several if t // size in consumed and (t, a + 1) not in made.payloads}
    done, error = recompute(read_run(copy), 10_000, seed=0)
    assert done == consumed_of_kept(made, size) - len(attempts)
    assert error is not None
    assert error < 1e-4


def test_count_and_seed_choose(honest: tuple[EditableRun, Path]) -> None:
    run = read_run(honest[1])
    assert recompute(run, 3, seed=5) == recompute(run, 3, seed=5)
    assert recompute(run, 3, seed=5)[0] == 3
    assert recompute(run, 0, seed=5) == (0, None)


def test_a_lie_about_one_token_shows(honest: tuple[EditableRun, Path], copy: Path) -> None:
    made, _ = honest
    lies = dict(made.payloads)
    for key, trajectory in lies.items():
        if trajectory.version in KEPT:
            span = trajectory.spans[0]
            logprobs = (span.behaviour_logprobs[0] - 0.25, *span.behaviour_logprobs[1:])
            lie = msgspec.structs.replace(span, behaviour_logprobs=logprobs)
            lies[key] = msgspec.structs.replace(trajectory, spans=(lie,))
    EditableRun(made.settings, made.rows, lies, made.rewards, made.prompt_ids).write(copy)
    run = read_run(copy)
    done, error = recompute(run, 2, seed=0)
    assert done == 2
    assert error == pytest.approx(0.25, abs=1e-4)
    assert audit(run).ok
    assert not audit(run).with_recomputed(20, done, error).ok


def test_sampled_by_another_version_shows(honest: tuple[EditableRun, Path], copy: Path) -> None:
    """The log says version 2, the log-probs are those of version 5's weights, announced as 2's."""
    made, _ = honest
    weights = {v: copy / "versions" / f"{v:06d}" / "model.safetensors" for v in KEPT}
    shutil.copyfile(weights[5], weights[2])
    digest = hashlib.sha256(weights[2].read_bytes()).hexdigest()
    rows = list(made.rows)
    changed = EditableRun(made.settings, rows, made.payloads, made.rewards, made.prompt_ids)
    position = changed.where(e.Trained, 1)
    rows[position] = type(rows[position])(
        rows[position].now, msgspec.structs.replace(rows[position].event, digest=digest), rows[position].commands
    )
    changed.write(copy)
    _, error = recompute(read_run(copy), 10_000, seed=0)
    assert error is not None
    assert error > 0.01


def test_changed_weights_are_refused(copy: Path) -> None:
    kept = kept_weights(read_run(copy))
    assert sorted(kept) == list(KEPT)
    shutil.copyfile(kept[2], kept[5])
    with pytest.raises(WeightsError, match=r"log announced .* for version 5"):
        recompute(read_run(copy), 10_000, seed=0)


def test_damaged_weights_are_refused(copy: Path) -> None:
    file = kept_weights(read_run(copy))[5]
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(WeightsError):
        recompute(read_run(copy), 10_000, seed=0)


def test_nothing_is_kept(copy: Path) -> None:
    shutil.rmtree(copy / "versions")
    assert recompute(read_run(copy), 8, seed=0) == (0, None)


def test_what_the_audit_reports_is_not_drawn(honest: tuple[EditableRun, Path], copy: Path) -> None:
    made, _ = honest
    damaged = dict(made.payloads)
    size = made.settings.schedule.group_size
    consumed = {g for row in made.rows for c in row.commands if isinstance(c, e.Train) for g in c.group_ids}
    keys = [k for k, t in sorted(damaged.items()) if t.version in KEPT and k[0] // size in consumed][:3]
    del damaged[keys[0]]
    span = damaged[keys[1]].spans[0]
    damaged[keys[1]] = msgspec.structs.replace(damaged[keys[1]], spans=(span, span))
    span = damaged[keys[2]].spans[0]
    numb = msgspec.structs.replace(span, behaviour_logprobs=(math.nan,) * len(span.token_ids))
    damaged[keys[2]] = msgspec.structs.replace(damaged[keys[2]], spans=(numb,))
    EditableRun(made.settings, made.rows, damaged, made.rewards, made.prompt_ids).write(copy)
    run = read_run(copy)
    assert recompute(run, 10_000, seed=0)[0] == consumed_of_kept(made, size) - 3
    assert not audit(run).ok
