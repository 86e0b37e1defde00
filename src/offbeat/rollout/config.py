"""The shape of a Llama, Qwen2 or Qwen3 model, read from a Hugging Face directory.

Invariant: what this engine cannot compute exactly as `transformers` does is refused here with one line
(EngineError), never approximated. Knows JSON and arithmetic only: no torch, no weights, no engine.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.errors import EngineError

FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the forward pass needs to know. Sizes count features; `head_dim` is even.

    `frequencies` [head_dim / 2] are the angles (radians) a pair of features turns per position.
    """

    family: str
    vocab: int
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    frequencies: tuple[float, ...]
    max_positions: int
    eos_ids: frozenset[int]

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads


def read_shape(model_dir: Path) -> ModelShape:
    """Read `config.json` (and `generation_config.json` where there is one) of a model directory.

    Raises EngineError for a missing or damaged file and for anything unsupported.
    """
    raw = _read_json(model_dir / "config.json")
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise _refused(model_dir, "model_type", family, f"one of {', '.join(FAMILIES)}")
    _refuse_variants(model_dir, raw)
    width, heads = _count(model_dir, raw, "hidden_size"), _count(model_dir, raw, "num_attention_heads")
    kv_heads = _count(model_dir, raw, "num_key_value_heads", heads)
    head_dim = _count(model_dir, raw, "head_dim", width // heads)
    if heads % kv_heads:
        raise _refused(model_dir, "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads = {heads}")
    if head_dim % 2:
        raise _refused(model_dir, "head_dim", head_dim, "an even number")
    bias = bool(raw.get("attention_bias", False))
    return ModelShape(
        family=family,
        vocab=_count(model_dir, raw, "vocab_size"),
        width=width,
        hidden=_count(model_dir, raw, "intermediate_size"),
        layers=_count(model_dir, raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bias,
        out_bias=family != "qwen2" and bias,
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        frequencies=_frequencies(model_dir, raw, head_dim),
        max_positions=_count(model_dir, raw, "max_position_embeddings", 2048 if family == "llama" else 32768),
        eos_ids=_eos_ids(model_dir, raw),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({error.strerror}); give a Hugging Face model directory") from None
    except ValueError as error:
        raise EngineError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise EngineError(f"{path}: not a JSON object")
    return data


def _refused(model_dir: Path, key: str, value: object, wanted: str) -> EngineError:
    return EngineError(f"{model_dir}/config.json: {key} = {value!r} is not supported by this engine; it takes {wanted}")


def _count(model_dir: Path, raw: dict[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _refused(model_dir, key, value, "a positive whole number")
    return value


def _refuse_variants(model_dir: Path, raw: dict[str, Any]) -> None:
    if raw.get("quantization_config") is not None:
        raise _refused(model_dir, "quantization_config", "{...}", "plain weights only")
    if raw.get("hidden_act", "silu") != "silu":
        raise _refused(model_dir, "hidden_act", raw["hidden_act"], "silu")
    if raw.get("use_sliding_window"):
        raise _refused(model_dir, "use_sliding_window", True, "full attention only")
    windowed = sorted({str(kind) for kind in raw.get("layer_types") or [] if kind != "full_attention"})
    if windowed:
        raise _refused(model_dir, "layer_types", windowed[0], "full_attention only")


def _eos_ids(model_dir: Path, raw: dict[str, Any]) -> frozenset[int]:
    """As `transformers.generate`: those of the generation config where it names any, else those of the config."""
    generation = model_dir / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(isinstance(token, int) for token in ids):
        raise _refused(model_dir, "eos_token_id", eos, "a token id or a list of them")
    return frozenset(ids)


def _frequencies(model_dir: Path, raw: dict[str, Any], head_dim: int) -> tuple[float, ...]:
    """Rotary frequencies theta^(-2i / head_dim), scaled by rope type; both config spellings are read.

    `llama3` follows the published Llama 3.1 rule: long wavelengths are slowed by `factor`, short ones kept,
    and those between `low_freq_factor` and `high_freq_factor` interpolated.
    """
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    theta = 10000.0 if theta is None else float(theta)
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise _refused(model_dir, "partial_rotary_factor", partial, "1.0")
    plain = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    if kind == "default" and all(not isinstance(value, dict) for value in rope.values()):
        return tuple(plain)
    try:
        if kind == "linear":
            return tuple(f / float(rope["factor"]) for f in plain)
        if kind == "llama3":
            return tuple(_llama3(f, rope) for f in plain)
    except KeyError as missing:
        raise _refused(model_dir, "rope_parameters", kind, f"{kind} with {missing.args[0]}") from None
    raise _refused(model_dir, "rope_type", kind, "default, linear or llama3")


def _llama3(frequency: float, rope: dict[str, Any]) -> float:
    factor, low, high = float(rope["factor"]), float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    turns = float(rope["original_max_position_embeddings"]) * frequency / (2 * math.pi)
    share = min(1.0, max(0.0, (turns - low) / (high - low)))
    return (1 - share) * frequency / factor + share * frequency
