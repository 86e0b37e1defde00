"""A policy small enough for many short runs, which knows enough one-digit sums to be rewarded now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat.studies.cell import Scale

TINY = Scale(task={"name": "addition", "digits": 1}, prompts=4, group_size=4, held_out=16, evaluate_every=3)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from offbeat.models.gold import GoldAnswers, Limits
    from offbeat.models.presets import Preset, build_model, character_tokenizer, write_policy
    from offbeat.models.warm_start import warm_start
    from offbeat.settings import ModelSettings
    from offbeat.tasks import make_task

    settings = TINY.settings(1e-3, 1)
    model = build_model(Preset(width=32, hidden=64, layers=1, heads=2, kv_heads=2), seed=0)
    gold = GoldAnswers(make_task(settings.task, 0), character_tokenizer(), Limits(TINY.context, TINY.max_new_tokens))
    chosen = ModelSettings(warm_start_target=0.04, warm_start_learning_rate=5e-3, warm_start_batch_size=64)
    warm_start(model, gold, chosen, lambda words, share: None)
    directory = tmp_path_factory.mktemp("policy")
    write_policy(model, directory)
    return directory
