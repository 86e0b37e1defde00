"""Publish invariant: damaged, swapped or stale weights are noticed before the first token."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from offbeat.backends.weights import (
    Canary,
    check_canary,
    check_version,
    publish,
    read_manifest,
    version_directory,
    weights_file,
)
from offbeat.errors import WeightsError

CANARY = Canary((1, 2), (3, 4), (-0.5, -1.5))


def write(run: Path, version: int, content: bytes) -> str:
    def save(directory: Path) -> str:
        (directory / "model.safetensors").write_bytes(content)
        return hashlib.sha256(content).hexdigest()

    return publish(run, version, save, lambda: CANARY).digest


def test_a_published_version_reads_back(tmp_path: Path) -> None:
    digest = write(tmp_path, 3, b"weights")
    manifest = read_manifest(tmp_path, 3, digest)
    assert manifest.version == 3
    check_canary(manifest, lambda prompt, response: [-0.5, -1.5 + 1e-5])


def test_damage_is_noticed(tmp_path: Path) -> None:
    digest = write(tmp_path, 3, b"weights")
    weights_file(tmp_path, 3).write_bytes(b"weightz")
    with pytest.raises(WeightsError, match="version 3"):
        read_manifest(tmp_path, 3, digest)


def test_another_versions_weights_are_noticed(tmp_path: Path) -> None:
    write(tmp_path, 3, b"three")
    digest = write(tmp_path, 4, b"four")
    version_directory(tmp_path, 4).rename(version_directory(tmp_path, 5))
    version_directory(tmp_path, 3).rename(version_directory(tmp_path, 4))
    with pytest.raises(WeightsError):
        read_manifest(tmp_path, 4, digest)
    with pytest.raises(WeightsError, match="manifest of version 4"):
        read_manifest(tmp_path, 5, digest)


def test_a_missing_version_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no usable manifest"):
        read_manifest(tmp_path, 7, "00")


@pytest.mark.parametrize("logprobs", [[-0.5, -1.0], [float("nan"), -1.5]])
def test_the_canary_notices_an_engine_that_serves_other_weights(tmp_path: Path, logprobs: list[float]) -> None:
    manifest = read_manifest(tmp_path, 3, write(tmp_path, 3, b"weights"))
    with pytest.raises(WeightsError, match="does not serve"):
        check_canary(manifest, lambda prompt, response: logprobs)


def test_a_version_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def dies(directory: Path) -> str:
        (directory / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="space"):
        publish(tmp_path, 1, dies, lambda: CANARY)
    assert not version_directory(tmp_path, 1).exists()
    digest = write(tmp_path, 1, b"whole")
    assert read_manifest(tmp_path, 1, digest).digest == digest


def test_a_version_to_train_from_has_all_its_files(tmp_path: Path) -> None:
    """Missing is as bad as damaged: the learner would find out only after everything else has started."""

    def save(directory: Path) -> str:
        (directory / "optimizer.safetensors").write_bytes(b"moments")
        (directory / "model.safetensors").write_bytes(b"weights")
        return hashlib.sha256(b"weights").hexdigest()

    digest = publish(tmp_path, 3, save, lambda: CANARY).digest
    check_version(tmp_path, 3, digest)
    optimizer = version_directory(tmp_path, 3) / "optimizer.safetensors"
    optimizer.write_bytes(b"momentz")
    with pytest.raises(WeightsError, match=r"optimizer\.safetensors is damaged"):
        check_version(tmp_path, 3, digest)
    optimizer.unlink()
    with pytest.raises(WeightsError, match=r"optimizer\.safetensors cannot be read: No such file"):
        check_version(tmp_path, 3, digest)
