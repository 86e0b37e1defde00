"""What vLLM cannot do is refused in one line that names the key and the remedy."""

from __future__ import annotations

import pytest

from offbeat.backends.rollout_process import adapters_of
from offbeat.errors import SettingsError
from offbeat.settings import load_settings

VLLM = "rollout.engine=vllm"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([VLLM], r"rollout.engine = vllm: .* asks for 3; add \[learner.lora\].*or set schedule.max_versions = 1"),
        ([VLLM, "schedule.name=partial"], r"asks for 3; add \[learner.lora\], whose versions live side by side$"),
        ([VLLM, "schedule.name=in-flight", "learner.lora.rank=4"], "schedule.name = in-flight: .*partial"),
        ([VLLM, "schedule.max_versions=1", "rollout.lanes=2"], "schedule.migration = cache: .*prefill"),
        (["learner.lora.rank=0"], "learner.lora.rank = 0"),
        (["learner.lora.targets=['lm_head']"], "learner.lora.targets"),
    ],
)
def test_impossible(overrides: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(None, overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [VLLM, "schedule.max_versions=1"],
        [VLLM, "schedule.name=sync"],
        [VLLM, "schedule.max_versions=1", "rollout.lanes=2", "schedule.migration=prefill"],
        [VLLM, "learner.lora.rank=4", "schedule.name=partial"],
    ],
)
def test_possible(overrides: list[str]) -> None:
    load_settings(None, overrides)


def test_room_for_every_version_alive_and_one_on_its_way_out() -> None:
    assert adapters_of(load_settings(None)) == (0, 0)
    assert adapters_of(load_settings(None, ["learner.lora.rank=4", "schedule.max_staleness=2"])) == (4, 4)
