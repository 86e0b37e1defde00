"""Starts vLLM in this process: one engine core, one worker, nothing bound to a core, quiet.

What this platform was found to need is here, each with its reason. Knows no request and no version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offbeat.errors import EngineError
from offbeat.rollout.config import ModelShape

BLOCK = 32
"""Tokens of a block of keys and values; vLLM's CPU kernels take multiples of 32."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM compiles adapters' kernels for; a smaller rank is padded."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core lives here: a step is a call, and with this process all ends
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the sampler is put into the first one
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two lanes bound to the same core would halve each other
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


def launch(
    model_dir: Path, shape: ModelShape, sequences: int, context: int, kv_tokens: int, dtype: str, lora: tuple[int, int]
) -> Any:
    """An LLMEngine of vLLM. `lora` is (adapters at once, largest rank); (0, 0): the weights themselves are the policy,
    and whatever they are now is no version.

    Raises EngineError, in one line, where vLLM cannot be imported or refuses the model.
    """
    os.environ.update(ENVIRONMENT)
    adapters, rank = lora
    bytes_per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * DTYPE_BYTES[dtype]
    options: dict[str, Any] = {
        "model": str(model_dir), "skip_tokenizer_init": True, "dtype": dtype, "enforce_eager": True,
        "max_num_seqs": sequences, "max_model_len": context, "max_num_batched_tokens": max(4096, context),
        "enable_prefix_caching": True, "async_scheduling": False, "block_size": BLOCK, "seed": 0,
        "distributed_executor_backend": "uni",
        # without it vLLM claims 92 % of the machine's memory, and fails where less is free; one block is its own
        "kv_cache_memory_bytes": (blocks_for(kv_tokens) + 1) * BLOCK * bytes_per_token,
    }  # fmt: skip
    if adapters:
        # A free slot stays: with all taken, vLLM 0.32 on the CPU computes rows without adapter with the last one.
        slots = adapters + 1
        fitting = next((size for size in LORA_RANKS if size >= rank), None)
        if fitting is None:
            raise EngineError(f"learner.lora.rank = {rank}: vLLM takes adapters up to rank {LORA_RANKS[-1]}; lower it")
        options |= {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": fitting}
    else:
        options["load_format"] = "dummy"
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
    except (ImportError, RuntimeError, OSError) as error:
        raise EngineError(f"vLLM cannot be imported ({_line(error)}); make its environment with `make vllm`") from error
    try:
        with _unseen("llvmlite.binding.ffi"):
            return LLMEngine.from_engine_args(EngineArgs(**options))
    except (ValueError, RuntimeError, OSError, TypeError) as error:
        raise EngineError(f"vLLM does not start with {model_dir} ({_line(error)})") from error


@contextmanager
def _unseen(name: str) -> Iterator[None]:
    """Take a loaded module out of sight: vLLM 0.32 reads every attribute of every module as it starts, and this one's
    library handle answers with a function to whatever it is asked."""
    module = sys.modules.pop(name, None)
    try:
        yield
    finally:
        if module is not None:
            sys.modules[name] = module


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
