"""Where versions come from: a run directory, also of a run that is going on, or a plain model directory.

*Publish invariant*, as in a run: before the first token of a version is sampled, its file's SHA-256 agrees with the run
log and the engine's log-probs of the canary with the learner's. Reads only; knows no engine but through its port.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from offbeat.backends.weights import check_canary, read_manifest, weights_file
from offbeat.durable import file_digest
from offbeat.errors import SettingsError, WeightsError
from offbeat.ports import Generator
from offbeat.report.read import DATABASE, read_published, read_run

WEIGHTS = "model.safetensors"


class Source(Protocol):
    """Versions that can be had. `poll` and `take_up` may take long and are called in other threads."""

    name: str
    policy: Path
    """A Hugging Face directory with config and tokenizer."""
    context: int | None
    """The longest prompt + response in tokens that the source was made for; None: whatever the model takes."""
    lora_rank: int
    """Of versions that are adapters; 0: a version is all weights."""

    def poll(self) -> Mapping[int, str]:
        """Every version that can be had now, with the SHA-256 of its weights. Raises RunDirectoryError."""

    def take_up(self, version: int, generator: Generator) -> None:
        """Have the generator load a version and prove it. Raises WeightsError or EngineError."""


class RunVersions:
    """The versions that a run has published and that still lie in its directory."""

    def __init__(self, directory: Path) -> None:
        opened = read_run(directory)
        self.name = directory.resolve().name
        self.policy = opened.policy_directory
        self.context: int | None = opened.settings.rollout.context
        lora = opened.settings.learner.lora
        self.lora_rank = 0 if lora is None else lora.rank
        self._directory = directory
        self._digests: dict[int, str] = {}
        self._seen = 0

    def poll(self) -> Mapping[int, str]:
        found, self._seen = read_published(self._directory, self._seen)
        self._digests |= found
        there = {v: digest for v, digest in self._digests.items() if weights_file(self._directory, v).is_file()}
        newest = max(self._digests)  # it may be about to be made anew; older ones do not come back
        self._digests = there | {newest: self._digests[newest]}
        return there

    def take_up(self, version: int, generator: Generator) -> None:
        manifest = read_manifest(self._directory, version, self._digests[version])
        generator.load(version, weights_file(self._directory, version))
        check_canary(manifest, lambda prompt, response: generator.score(version, prompt, response))


class ModelDirectory:
    """A Hugging Face directory: one version, number 0."""

    def __init__(self, directory: Path) -> None:
        self.name = directory.resolve().name
        self.policy = directory
        self.context: int | None = None
        self.lora_rank = 0
        self._digest = file_digest(directory / WEIGHTS)

    def poll(self) -> Mapping[int, str]:
        return {0: self._digest}

    def take_up(self, version: int, generator: Generator) -> None:
        if file_digest(self.policy / WEIGHTS) != self._digest:
            raise WeightsError(f"{self.policy / WEIGHTS} has changed since the server was started")
        generator.load(version, self.policy / WEIGHTS)


def source_of(directory: Path) -> Source:
    """What a directory holds. Raises SettingsError where it is neither a run nor a model."""
    if (directory / DATABASE).is_file():
        return RunVersions(directory)
    if (directory / "config.json").is_file():
        if not (directory / WEIGHTS).is_file():
            raise SettingsError(
                f"{directory}: holds no {WEIGHTS}; save the model in one safetensors file"
                " (save_pretrained with max_shard_size)"
            )
        return ModelDirectory(directory)
    what = "holds neither a run nor a model" if directory.is_dir() else "no such directory"
    raise SettingsError(f"{directory}: {what}; give a directory of `offbeat train` or a Hugging Face model directory")
