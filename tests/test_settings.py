"""Bad settings are refused in one line that names the key, the value and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat.errors import SettingsError
from offbeat.settings import Settings, load_settings, settings_from

IMPOSSIBLE = {
    "schedule.group_size=1": "set 2 or more",
    "schedule.train_batch_size=100": "not a multiple of schedule.group_size = 8; set 96",
    "schedule.rollout_batch_size=4096": "lower it or raise schedule.max_staleness",
    "schedule.rollout_batch_size=64": "set at least 128",
    "rollout.max_new_tokens=192": "raise rollout.context or lower rollout.max_new_tokens",
    "rollout.cache_tokens=100": "less than rollout.context = 192",
    "rollout.lanes_per_process=2": "does not divide rollout.lanes = 1",
    "learner.updates_per_iteration=17": "set at most 16",
    "schedule.name=repack": "rollout.lanes = 1: .* set 2 or more",
    "schedule.max_staleness=-1": "schedule.max_staleness",
    "schedule.name=syn": "schedule.name",
    "learner.learning_rate=fast": "learner.learning_rate",
    "learner.rate=1": "learner.rate",
    "learner=3": "not of the form section.key=value",
    "run.seed=99999999999999999999999999": "run.seed = 9.*less than or equal to 9223372036854775807",
    "rollout.context=99999999999999999999999": "rollout.context = 9.*less than or equal",
    "task.min_count=50": "lower the one or raise the other",
}


@pytest.mark.parametrize("override", IMPOSSIBLE)
def test_what_cannot_work_is_one_line_with_a_remedy(override: str) -> None:
    with pytest.raises(SettingsError, match=IMPOSSIBLE[override]) as caught:
        load_settings(None, [override])
    assert "\n" not in str(caught.value)


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
