"""Many versions in one engine and one batch: a version is a LoRA adapter beside the base model's weights.

Invariants: an adapter's name carries its version and is used once in an engine's life (vLLM remembers prompts by it);
one slot for adapters always stays free, see `launch`. vLLM is never left to make room by itself.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from offbeat.durable import file_digest
from offbeat.errors import EngineError
from offbeat.records import Adapter
from offbeat.rollout.adapters import read_adapter
from offbeat.rollout.config import ModelShape
from offbeat.rollout.versions import BASE


class Adapters:
    """At most `limit` versions, each loaded under a name of its own."""

    def __init__(self, engine: Any, shape: ModelShape, model_dir: Path, limit: int) -> None:
        self.limit = limit
        self._engine = engine
        self._shape = shape
        self._base = file_digest(model_dir / BASE)
        self._held: dict[int, tuple[str, Any]] = {}
        self._loads = 0

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(self._held)

    def load(self, version: int, weights: Path) -> None:
        digest, adapter, _ = read_adapter(weights, self._shape, self._base)
        if version in self._held:
            if self._held[version][0] != digest:
                raise EngineError(f"version {version} is loaded with other weights; unload it or load another number")
            return
        if len(self._held) >= self.limit:
            raise EngineError(
                f"version {version}: this engine has room for {self.limit} adapters and holds {sorted(self._held)};"
                " unload one first"
            )
        from vllm.lora.request import LoRARequest

        self._loads += 1
        name = f"version-{version}-load-{self._loads}"
        with tempfile.TemporaryDirectory(prefix="offbeat-adapter-") as made:
            directory = Path(made)
            (directory / "adapter_config.json").write_text(json.dumps(peft_config(adapter)))
            (directory / "adapter_model.safetensors").symlink_to(weights.resolve())
            request = LoRARequest(name, self._loads, str(directory))
            if not self._engine.add_lora(request):
                raise EngineError(f"version {version}: vLLM did not take adapter {name}")
        self._held[version] = digest, request

    def unload(self, version: int) -> None:
        _, request = self._held.pop(version)
        self._engine.remove_lora(request.lora_int_id)

    def adapter(self, version: int) -> Any:
        return self._held[version][1]


def peft_config(adapter: Adapter) -> dict[str, Any]:
    """adapter_config.json of peft, as far as vLLM reads it."""
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": adapter.rank, "lora_alpha": adapter.alpha,
        "target_modules": list(adapter.targets), "bias": "none", "lora_dropout": 0.0,
    }  # fmt: skip
