"""Bad settings are refused in one line that names the key, the value and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat.errors import SettingsError
from offbeat.objectives import NAMES
from offbeat.settings import Settings, Where, load_settings, settings_from

IMPOSSIBLE = {
    "schedule.group_size=1": "set 2 or more",
    "schedule.train_batch_size=100": "not a multiple of schedule.group_size = 8; set 96",
    "schedule.rollout_batch_size=4096": "lower it or raise schedule.max_staleness",
    "schedule.rollout_batch_size=64": "set at least 128",
    "rollout.max_new_tokens=192": "raise rollout.context or lower rollout.max_new_tokens",
    "rollout.cache_tokens=100": "less than rollout.context = 192",
    "rollout.lanes_per_process=2": "does not divide rollout.lanes = 1",
    "learner.updates_per_iteration=17": "set at most 16",
    "learner.sharding=fsdp2": "set learner.processes to 2 or more, or remove it",
    "learner.processes=65": "learner.processes = 65: .*less than or equal to 64",
    "schedule.name=repack": "rollout.lanes = 1: .* set 2 or more",
    "schedule.max_staleness=-1": "schedule.max_staleness",
    "schedule.name=syn": "schedule.name",
    "learner.learning_rate=fast": "learner.learning_rate",
    "learner.rate=1": "learner.rate",
    "run.iterations=4": "run.iterations = 4: unknown key; write learner.iterations",
    "learner.lerning_rate=1": "learner.lerning_rate = 1: unknown key; write learner.learning_rate",
    "learner.align.c_hi=1": "learner.align.c_hi = 1: unknown key; remove it .known keys: mode, c_low, c_high",
    "learner=3": "not of the form section.key=value",
    "run.seed=99999999999999999999999999": "run.seed = 9.*less than or equal to 9223372036854775807",
    "rollout.context=99999999999999999999999": "rollout.context = 9.*less than or equal",
    "task.min_count=50": "lower the one or raise the other",
    "learner.objective=grop": "learner.objective = 'grop': unknown objective; use grpo, dr-grpo, .* or bapo",
    "learner.objective.cap=2": "learner.objective.cap = 2: unknown key; remove it",
    "learner.objective.clip_high=0": "learner.objective.clip_high = 0: .*greater than 0",
    "learner.objective=7": "learner.objective = 7",
    "learner.clip_low=2": "learner.objective.clip_low = 2: .*less than or equal to 1",
    "learner.ess_reference=0": "learner.ess_reference = 0",
    "learner.baseline=mean": "learner.baseline = 'mean'",
    "rollout.temperature=1e-30": "rollout.temperature = 1e-30: .*greater than or equal to 0.001",
    "learner.iterations=true": "learner.iterations = true: a number is meant; give one",
    "learner.objective.clip_high=true": "learner.objective.clip_high = true: a number is meant",
    "task.held_out=100000000": "task.held_out = 100000000: .*less than or equal to 100000",
    "run.lease_seconds=1e-9": "run.lease_seconds = 1e-09: .*greater than or equal to 0.1",
    "run.stall_seconds=1e308": "run.stall_seconds = 1e\\+308: .*less than or equal to 1",
    "ray.lane_cpus=0.0000001": r"ray.lane_cpus = 1e-07: Ray counts in parts of 1/10000; give 0.0000",
    "ray.lane_gpus=0.33333": "ray.lane_gpus = 0.33333: .*; give 0.3333",
    "learner.lora.targets=[]": r"learner.lora.targets = \[\]: give at least 1",
}


@pytest.mark.parametrize("override", IMPOSSIBLE)
def test_what_cannot_work_is_one_line_with_a_remedy(override: str) -> None:
    with pytest.raises(SettingsError, match=IMPOSSIBLE[override]) as caught:
        load_settings(None, [override])
    assert "\n" not in str(caught.value)


CONTRADICTIONS = {
    ("learner.objective=dr-grpo", "learner.aggregation=token"): "dr-grpo is defined by the constant one",
    ("learner.objective=dr-grpo", "learner.normalise_advantage=true"): "dr-grpo is defined without",
    ("learner.baseline=opo", "learner.normalise_advantage=true"): "baseline opo is not the mean",
    ("learner.objective=mis", "learner.objective.highest=0.9"): "would leave out what is on policy",
    ("learner.objective=bapo", "learner.objective.low_from=0.95"): "learner.objective.low_from = 0.95 is more than",
    ("learner.objective=topr", "learner.clip_low=0.1"): "learner.objective.clip_low = 0.1: unknown key",
    (
        "learner.processes=2",
        "learner.sharding=fsdp2",
        "learner.lora.rank=8",
    ): "an adapter of .learner.lora. is not sharded",
    ("learner.objective=m2po", "learner.objective.tokens=some"): "learner.objective.tokens = 'some'",
}


@pytest.mark.parametrize("overrides", CONTRADICTIONS, ids=" ".join)
def test_objectives_refuse_what_contradicts_them(overrides: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match=CONTRADICTIONS[overrides]) as caught:
        load_settings(None, list(overrides))
    assert "\n" not in str(caught.value)


def test_an_objective_by_name_or_with_its_settings_in_any_order() -> None:
    by_table = settings_from({"learner": {"objective": {"name": "dapo", "clip_high": 0.5}}})
    for overrides in (
        ["learner.objective=dapo", "learner.objective.clip_high=0.5"],
        ["learner.objective.clip_high=0.5", "learner.objective=dapo"],
        ["learner.objective.name=dapo", "learner.objective.clip_high=0.5"],
        ["learner.objective=dapo", "learner.clip_high=0.5"],
    ):
        assert load_settings(None, overrides) == by_table
    assert load_settings(None, ["learner.objective=gspo"]).learner.objective.name == "gspo"


def test_settings_of_runs_before_there_were_objectives_mean_what_they_meant() -> None:
    stored = {"clip_low": 0.1, "clip_high": 0.3, "aggregation": "sequence", "normalise_advantage": True}
    learner = settings_from({"learner": stored}).learner
    assert (learner.objective.name, learner.objective.ratio_bounds) == ("grpo", (0.9, 1.3))
    assert (learner.loss_aggregation, learner.advantage_is_normalised) == ("sequence", True)


@pytest.mark.parametrize(
    ("learner", "aggregation", "normalised"),
    [
        ({}, "token", True),
        ({"objective": "gspo"}, "sequence", True),
        ({"objective": "gspo", "aggregation": "token"}, "token", True),
        ({"objective": "dr-grpo"}, "constant", False),
        ({"baseline": "leave-one-out"}, "token", False),
        ({"baseline": "leave-one-out", "normalise_advantage": True}, "token", True),
        ({"baseline": "opo"}, "token", False),
    ],
)
def test_what_an_objective_and_a_baseline_imply(learner: dict[str, object], aggregation: str, normalised: bool) -> None:
    chosen = settings_from({"learner": learner}).learner
    assert (chosen.loss_aggregation, chosen.advantage_is_normalised) == (aggregation, normalised)


def test_an_address_without_ray_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--address auto: this run's backend is not Ray; add --backend ray"):
        Where(address="auto").of(Settings())
    with pytest.raises(SettingsError, match="--address auto"):
        Where(backend="local", address="auto").of(settings_from({"run": {"backend": "ray"}}))
    assert Where("ray", "auto").of(Settings()).ray.address == "auto"


@pytest.mark.parametrize("schedule", ["sync", "one-step-off", "partial", "in-flight"])
def test_only_multi_version_evicts(schedule: str) -> None:
    with pytest.raises(SettingsError, match=f"schedule.at_bound = evict: {schedule} gives nothing up"):
        settings_from({"schedule": {"name": schedule, "at_bound": "evict"}})


@pytest.mark.parametrize("schedule", ["partial", "in-flight"])
def test_who_splices_needs_two_versions(schedule: str) -> None:
    with pytest.raises(SettingsError, match=r"schedule\.max_versions = 1: .* set 2"):
        load_settings(None, [f"schedule.name={schedule}", "schedule.max_versions=1"])


def test_a_config_file_and_overrides_come_together(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[schedule]\nmax_staleness = 1\ngroup_size = 4\n")
    settings = load_settings(file, ["schedule.group_size=16"])
    assert (settings.schedule.max_staleness, settings.schedule.group_size) == (1, 16)
    assert settings.schedule.outstanding_limit == 2 * settings.schedule.train_batch_size


@pytest.mark.parametrize(
    ("name", "bound", "versions"), [("sync", 0, 1), ("one-step-off", 1, 2), ("multi-version", 2, 3), ("repack", 2, 1)]
)
def test_derived_values(name: str, bound: int, versions: int) -> None:
    settings = settings_from({"schedule": {"name": name}, "rollout": {"lanes": 4, "lanes_per_process": 2}})
    assert (settings.schedule.staleness_bound, settings.schedule.live_versions) == (bound, versions)
    assert settings.rollout.processes == 2


def test_a_value_where_a_section_is_meant_names_the_section(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("learner = 3\n")
    with pytest.raises(SettingsError, match=r"learner = 3: a section is meant; write \[learner\]"):
        load_settings(file)


def test_a_dump_is_the_settings_again() -> None:
    settings = settings_from({"schedule": {"at_bound": "evict"}, "rollout": {"cache_tokens": 4096}})
    assert settings_from(settings.model_dump(mode="json")) == settings != Settings()
    for name in NAMES:
        chosen = settings_from({"learner": {"objective": name}})
        assert settings_from(chosen.model_dump(mode="json")) == chosen
