"""Sampling inside vLLM by the law of the local engine: what is drawn depends on logits, settings, seed and position.

It stands where vLLM's own sampler does and writes tokens, behaviour log-probs and supports straight into the requests
(`Held`), so a request that moves, is preempted or starts again draws what it would have drawn undisturbed, and both
engines give the same tokens for the same seed. *Forced* tokens are taken instead of drawn: a score by the very path
that samples. Runs on the host; where logits lie on a device they are copied first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.v1.outputs import SamplerOutput

from offbeat.backends.vllm.held import Held
from offbeat.rollout.kernels import logprobs_of
from offbeat.rollout.sampling import RowSampling, draw, seed_word


class RecordingSampler(nn.Module):
    """`held` are the requests with vLLM by vLLM's name."""

    logprobs_mode = "raw_logprobs"

    def __init__(self, runner: Any, held: dict[str, Held]) -> None:
        super().__init__()
        self._runner = [runner]  # in a list: the runner is no part of this module
        self._held = held
        self._broken: list[Held] = []

    def take_broken(self) -> list[Held]:
        """Requests that met logits that are not finite since this was last asked; nothing was drawn for them."""
        broken, self._broken = self._broken, []
        return broken

    def forward(self, logits: Tensor, sampling_metadata: Any, **_: Any) -> SamplerOutput:
        """Logits [A, vocab], a row for every request of vLLM's batch, to one token each."""
        [runner] = self._runner
        batch = runner.input_batch
        count = logits.shape[0]
        held = [self._held[name] for name in batch.req_ids]
        assert len(held) == count, f"{count} rows of logits for {len(held)} requests"
        scores = np.ascontiguousarray(logits.detach().float().cpu().numpy())
        drawn = draw(scores, _sampling_of(held))
        tokens, logprobs = drawn.tokens, drawn.behaviour_logprobs
        unfinished_prefix = runner.discard_request_mask.np[:count]
        for row, request in enumerate(held):
            if unfinished_prefix[row]:
                continue
            if not drawn.finite[row]:
                self._broken.append(request)
                tokens[row] = 0
                continue
            if request.forced:
                tokens[row] = request.forced[request.count]
                logprobs_of(scores[row : row + 1], tokens[row : row + 1], logprobs[row : row + 1])
            kept = None if drawn.support is None else drawn.support[row]
            support = None if kept is None else tuple(int(token) for token in kept)
            request.append(int(tokens[row]), float(logprobs[row]), support)
        return _output(torch.from_numpy(tokens), logits.device)


def _sampling_of(held: list[Held]) -> RowSampling:
    settings = [row.request.sampling for row in held]
    return RowSampling(
        temperature=np.array([s.temperature for s in settings], dtype=np.float64),
        top_k=np.array([s.top_k for s in settings], dtype=np.int64),
        top_p=np.array([s.top_p for s in settings], dtype=np.float64),
        seed=np.array([seed_word(row.request.seed) for row in held], dtype=np.uint64),
        position=np.array([row.count for row in held], dtype=np.int64),
    )


def _output(tokens: Tensor, device: torch.device) -> SamplerOutput:
    sampled = tokens.to(device=device, dtype=torch.int32).unsqueeze(-1)
    return SamplerOutput(sampled_token_ids=sampled, logprobs_tensors=None)
