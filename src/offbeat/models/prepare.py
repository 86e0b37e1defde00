"""From settings to a policy on disk: the user's directory, checked, or a preset, warm-started once and cached.

Invariant: everything that determines a warm-started preset is in its cache key, so a cached policy is the one that
would be made. Runs alone in its process and may use two threads meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import cast

from offbeat.errors import SettingsError
from offbeat.models.cache import cached
from offbeat.models.directory import validate_policy
from offbeat.models.prompts import check_exam, encoded_exam
from offbeat.models.tokens import Tokenizer, load_tokenizer
from offbeat.ports import Task
from offbeat.settings import EpisodesTask, JsonlTask, Settings
from offbeat.tasks import REVISIONS, make_task

FORMAT = 3
"""Raised whenever presets, tokenizer or warm start change what they make."""
MOST_THREADS = 2
FINGERPRINT_PROMPTS = 64


def user_cache_path(name: str) -> Path:
    """Where this machine keeps caches. An environment that serves only has no platformdirs."""
    from platformdirs import user_cache_path

    return user_cache_path(name)


def prepare_policy(settings: Settings, progress: Callable[[str, float], None]) -> Path:
    """A Hugging Face directory with the policy to start from. `progress` gets a line and a share in [0, 1].

    Raises SettingsError for an unusable `model.path` or setting, TaskError where the task cannot be learned from or a
    held-out prompt does not fit.
    """
    task = make_task(settings.task, settings.run.seed)
    if settings.model.path:
        directory = validate_policy(settings.model.path, settings.rollout.context)
        _check_exam(load_tokenizer(directory), task, settings)
        progress(f"model: {directory}", 1.0)
        return directory
    from offbeat.models.presets import character_tokenizer

    _check_exam(cast(Tokenizer, character_tokenizer()), task, settings)
    root = user_cache_path("offbeat") / "policies"
    entry = cached(
        root,
        f"{settings.model.preset}-{cache_key(settings, task)}",
        make=lambda directory: _make(settings, task, directory, progress),
        waiting=lambda: progress("warm start: waiting for another process that is making the same policy", 0.0),
    )
    progress(f"model: {entry}", 1.0)
    return entry


def _check_exam(tokenizer: Tokenizer, task: Task, settings: Settings) -> None:
    """Raise TaskError for a held-out prompt that no lane could answer: before an hour is spent on the policy."""
    check_exam(encoded_exam(tokenizer, task, settings.task.held_out), settings.rollout)


def cache_key(settings: Settings, task: Task) -> str:
    """A digest [32 hex digits] of all that determines the warm-started preset, the task's own content included."""
    served = chain(map(task.prompt, range(FINGERPRINT_PROMPTS)), task.held_out(1))
    parts = {
        "format": FORMAT,
        "model": settings.model.model_dump(mode="json", exclude={"path"}),
        "task": settings.task.model_dump(mode="json", exclude={"reward_seconds"}),
        "revision": REVISIONS[settings.task.name],
        "limits": [settings.rollout.context, settings.rollout.max_new_tokens],
        "seed": settings.run.seed,
        "prompts": [[prompt.text, prompt.answer] for prompt in served],
        "file": _file_digest(settings.task) if isinstance(settings.task, JsonlTask | EpisodesTask) else "",
    }
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def _file_digest(task: JsonlTask | EpisodesTask) -> str:
    with Path(task.file).expanduser().open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _make(settings: Settings, task: Task, directory: Path, progress: Callable[[str, float], None]) -> None:
    progress("warm start: building the model", 0.0)
    from offbeat.models.gold import GoldAnswers, Limits
    from offbeat.models.presets import CONTEXT, PRESETS, build_model, character_tokenizer, write_policy
    from offbeat.models.warm_start import warm_start

    if settings.rollout.context > CONTEXT:
        raise SettingsError(
            f"rollout.context = {settings.rollout.context}: the presets take at most {CONTEXT} tokens; lower it or"
            " give a model.path"
        )
    limits = Limits(settings.rollout.context, settings.rollout.max_new_tokens)
    with _threads(min(MOST_THREADS, os.cpu_count() or 1)):
        model = build_model(PRESETS[settings.model.preset], settings.run.seed)
        gold = GoldAnswers(task, cast(Tokenizer, character_tokenizer()), limits)
        warm_start(model, gold, settings.model, progress)
        write_policy(model, directory)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
