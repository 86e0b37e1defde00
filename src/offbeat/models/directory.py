"""Is a directory the user names a policy offbeat can train? Answered before anything is written.

Invariant: every refusal is one line that names the key, the value and the remedy (SettingsError). Weights are read
from safetensors only. Loads no weights and no torch of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offbeat.errors import SettingsError
from offbeat.models.tokens import load_tokenizer

FAMILIES = ("llama", "qwen2", "qwen3")


def validate_policy(path: str, context: int) -> Path:
    """The directory, when it holds a supported model for `context` tokens. Raises SettingsError."""
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise _refused(path, "no such directory", "give a Hugging Face model directory, or none for a preset")
    config = _json_object(path, directory / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        raise _refused(path, f"config.json: model_type = {family!r}", f"give a model of {', '.join(FAMILIES)}")
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions < context:
        raise SettingsError(
            f"rollout.context = {context}: the model in {path} takes {positions} tokens; lower rollout.context"
        )
    _check_weights(path, directory)
    _check_tokenizer(path, directory, config.get("vocab_size"))
    return directory


def _check_weights(path: str, directory: Path) -> None:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        shards = _json_object(path, index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise _refused(path, "model.safetensors.index.json: no weight_map", "save the model anew")
        names = sorted({str(name) for name in shards.values()})
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (directory / name).is_file():
            raise _refused(path, f"{name} is missing", "save the model with safetensors (save_pretrained does)")


def _check_tokenizer(path: str, directory: Path, vocabulary: Any) -> None:
    remedy = "save the tokenizer there (save_pretrained does)"
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise _refused(path, "no tokenizer", remedy)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            _json_object(path, directory / name)
    try:
        tokens = len(load_tokenizer(directory))
    except (OSError, ValueError) as error:
        raise _refused(path, f"the tokenizer cannot be loaded ({_first_line(error)})", remedy) from None
    if isinstance(vocabulary, int) and tokens > vocabulary:
        raise _refused(
            path, f"the tokenizer has {tokens} tokens, the model {vocabulary}", "give a model with its own tokenizer"
        )


def _json_object(path: str, file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _refused(path, f"{file.name} is missing", "give a Hugging Face model directory") from None
    except (OSError, ValueError) as error:
        raise _refused(path, f"{file.name} cannot be read ({_first_line(error)})", "save the model anew") from None
    if not isinstance(data, dict):
        raise _refused(path, f"{file.name} is not a JSON object", "save the model anew")
    return data


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _refused(path: str, what: str, remedy: str) -> SettingsError:
    return SettingsError(f"model.path = {path}: {what}; {remedy}")
