"""One version at a time: a version is the model's weights, put in place of those before.

Invariants: a file that is not exactly the announced model is refused before anything is touched; what was computed
under the weights before (keys and values of prompts) is forgotten with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offbeat.errors import EngineError
from offbeat.rollout.config import ModelShape
from offbeat.rollout.weights import read_tensors


class FullWeights:
    """The version that the model holds, if any."""

    limit = 1

    def __init__(self, engine: Any, shape: ModelShape) -> None:
        self._engine = engine
        self._shape = shape
        self._held: dict[int, str] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(self._held)

    def load(self, version: int, weights: Path) -> None:
        digest, tensors = read_tensors(weights, self._shape)
        if self._held.get(version, digest) != digest:
            raise EngineError(f"version {version} is loaded with other weights; unload it or load another number")
        if version in self._held:
            return
        if self._held:
            raise EngineError(
                f"version {version}: this engine holds one version of full weights, now {next(iter(self._held))};"
                " unload it first"
            )
        runner = model_runner(self._engine)
        runner.reload_weights(weights_iterator=iter(tensors.items()))
        pack_again(runner.get_model())
        if not self._engine.reset_prefix_cache():
            raise EngineError(f"version {version}: keys and values of the version before are still in use")
        self._held[version] = digest

    def unload(self, version: int) -> None:
        """The weights stay where they are until others come; nothing may be decoded with them."""
        del self._held[version]

    def adapter(self, version: int) -> None:
        return None


def model_runner(engine: Any) -> Any:
    """What computes: vLLM's model runner in this process."""
    return engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def pack_again(model: Any) -> None:
    """Pack anew what vLLM packed for the CPU and did not notice the change of.

    vLLM 0.32 reloads a head that is tied to the embedding, but goes on with the packed copy of the old one: its
    log-probs are then off by whole nats, silently.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if hasattr(layer, "cpu_linear") and weight is not None and weight.ndim == 2 and weight.numel():
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
