"""Gradient alignment control for any torch optimizer: hooks around its step, and nothing else of it touched.

*Transparency invariant*: where the rule asks for no change (mode `observe`, a safe or an invalid step) gradients,
parameters and optimizer state are bit for bit those of training without it. A skipped step is one whose gradients
the optimizer does not get to see: no update, no decay, no momentum.
*Same-everywhere invariant*: decisions follow from sums over all processes, so all of them decide alike.
Source: GAC (arXiv 2603.01501). Knows no loss, no model and no trainer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from offbeat.align.alignment import Alignment
from offbeat.align.memory import Memory, Remembered, buckets, rewrite, settle
from offbeat.align.past import Past
from offbeat.align.products import local, squares_and_products, wide
from offbeat.align.rule import AlignSettings, cosine_after, cosine_of, decide, kept
from offbeat.align.turning import random_turn

KEY = "align_state"
"""Where the first parameter group of the optimizer's state dict carries the state of this."""
GROUP = "align"
"""A parameter group with this key set to False is neither measured nor controlled."""
_NOTHING: dict[Tensor, Tensor] = {}


class GAC:
    """`GAC(optimizer)` and train on as before. `last` says what the latest step was, `counts` how many were which."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        settings: AlignSettings | None = None,
        *,
        shards: dist.ProcessGroup | None = None,
        **changes: Any,
    ) -> None:
        """Attach to an optimizer, also one wrapped by Accelerate. `changes` are single settings, by name.

        `shards`: the group over which gradients that are not DTensors are shards of the whole (FSDP1, ZeRO).
        Raises ValueError for impossible settings, TypeError for an unknown one.
        """
        self.settings = replace(settings or AlignSettings(), **changes)
        self.optimizer = _innermost(optimizer)
        self._shards = shards
        history = torch.bfloat16 if self.settings.history == "bfloat16" else None
        self._memory = Memory(history, self.settings.offload)
        self._parameters_before = Memory(None, self.settings.offload)
        self._handles: list[Any] = []
        self._forget_all()
        if self.settings.mode != "off":
            self._handles = [
                self.optimizer.register_step_pre_hook(self._before_step),
                self.optimizer.register_step_post_hook(self._after_step),
                self.optimizer.register_state_dict_post_hook(self._on_state_dict),
                self.optimizer.register_load_state_dict_post_hook(self._on_load_state_dict),
            ]
            self._on_load_state_dict(self.optimizer)

    def _forget_all(self) -> None:
        self.last: Alignment | None = None
        self.step, self.skips, self.longest_skips = 0, 0, 0
        self.counts: Counter[str] = Counter()
        self._past = Past(self.settings)
        self._before: Remembered | None = None
        self._pending: Alignment | None = None
        self._hidden: dict[Tensor, Tensor] = {}

    def detach(self) -> None:
        """Take the hooks away: from now on the optimizer is as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # -- one step --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def control(self) -> Alignment:
        """Measure and control the gradients now, instead of at the next `optimizer.step()`, which still must follow:
        for callers that clip by themselves and want to clip what control left. A collective call where gradients are
        sharded. Raises RuntimeError where the step before this has not been taken yet.
        """
        if self._pending is not None:
            raise RuntimeError("the gradients are controlled already; call the optimizer's step() first")
        self.step += 1
        if self.settings.mode == "off":
            return Alignment(self.step, "observed")
        gradients = dict(self._gradients())
        vectors = self._past.vectors()
        sums = squares_and_products(gradients, [entry.parts for entry in vectors], self._shards)
        products = {id(entry): product for entry, product in zip(vectors, sums[1:], strict=True)}

        def cosine(entry: Remembered | None) -> float | None:
            return None if entry is None else cosine_of(products[id(entry)], sums[0], entry.square)

        lags = {lag: cosine(self._past.at(lag)) for lag in self.settings.lags}
        norm = math.sqrt(max(0.0, sums[0]))
        found = Alignment(self.step, "invalid", cosine(self._past.reference), norm=norm, skips=self.skips, lags=lags)
        if not (math.isfinite(sums[0]) and sums[0] > 0):
            self._past.miss()
        else:
            found = self._apply(gradients, found, sums[0], products)
        self._pending = found
        return found

    def missed(self) -> None:
        """Say that a step was left out before the optimizer was asked (an overflow): the next has no predecessor."""
        self.step += 1
        self._past.miss()
        self._note(Alignment(self.step, "invalid", skips=self.skips))

    def _apply(
        self, gradients: dict[Tensor, Tensor], found: Alignment, square: float, products: dict[int, float]
    ) -> Alignment:
        """Decide, change the gradients in place and remember what the next step is compared with."""
        settings, c, reference = self.settings, found.cosine, self._past.reference
        decision = decide(settings, c, self.skips)
        skipped = decision.regime == "skipped"
        share = 1.0 if c is None or decision.gain == 1 else kept(c, decision.gain)
        own, other, along, controlled = 1.0, 0.0, _NOTHING, c
        if not skipped and decision.gain != 1 and c is not None and reference is not None:
            product = products[id(reference)]
            if settings.direction == "previous":
                other, along = -(1 - decision.gain) * product / reference.square, reference.parts
                controlled = cosine_after(c, decision.gain)
            elif settings.direction == "none":
                own = share
            else:
                own, other, along, controlled = random_turn(
                    gradients, reference, c, decision.gain, (square, product), (settings.seed, self.step), self._shards
                )
        scale = self._scale(found.norm, share)
        raw, applied = self._past.places(skipped)
        if skipped:
            rewrite(self._memory, gradients, _NOTHING, own=1.0, other=0.0, raw=raw, applied=applied)
        else:
            own, other = own * scale, other * scale
            rewrite(self._memory, gradients, along, own=own, other=other, raw=raw, applied=applied)
        for entry, size in ((raw, square), (applied, square if skipped else square * (share * scale) ** 2)):
            if entry is not None:
                settle(entry, gradients, size)
        self._past.remember(raw, applied, skipped)
        self.skips = self.skips + 1 if skipped else 0
        self.longest_skips = max(self.longest_skips, self.skips)
        share = 1.0 if settings.rescale and share > 0 else share
        return replace(
            found, regime=decision.regime, controlled=None if skipped else controlled, gain=decision.gain,
            kept=0.0 if skipped else share, skips=self.skips,
        )  # fmt: skip

    def _scale(self, norm: float, share: float) -> float:
        """What the controlled gradient is multiplied by, for `rescale` and `max_norm` (as torch clips)."""
        settings = self.settings
        scale = 1 / share if settings.rescale and share > 0 else 1.0
        if settings.max_norm is None:
            return scale
        loss_scale = getattr(self.optimizer, "grad_scale", None)
        norm /= float(loss_scale) if loss_scale is not None else 1.0
        bounded = norm * share * scale if settings.clip == "after" else norm
        return scale * min(1.0, settings.max_norm / (bounded + 1e-6))

    def _gradients(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Parameters that have a gradient, with this process's part of it."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"] if group.get(GROUP, True) else ():
                if parameter.grad is not None:
                    if parameter.grad.is_sparse:
                        raise ValueError(f"a sparse gradient cannot be aligned; set {GROUP!r}: False in its group")
                    yield parameter, local(parameter.grad)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    # -- around the step -------------------------------------------------------------------------------------

    @torch.no_grad()
    def _before_step(self, _: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if any(callable(argument) for argument in (*arguments, *named.values())):
            raise ValueError("step(closure) makes its gradients inside the step: they cannot be controlled")
        found = self._pending or self.control()
        if found.regime == "skipped":
            self._past.update = None
            for parameter, _part in list(self._gradients()):
                assert parameter.grad is not None
                self._hidden[parameter], parameter.grad = parameter.grad, None
        elif self.settings.update_cosine:
            self._before = self._before or Remembered()
            self._parameters_before.take(self._before, {p: local(p) for p, _part in self._gradients()})

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        found, self._pending = self._pending, None
        assert found is not None, "torch runs the hook before the step first"
        if found.regime == "skipped":
            for parameter, gradient in self._hidden.items():
                parameter.grad = gradient
            self._hidden.clear()
        elif self.settings.update_cosine:
            found = replace(found, update=self._cosine_of_updates())
        self._note(found)

    def _cosine_of_updates(self) -> float | None:
        """Turn the parameters before the step into their change, compare it with the change before, remember it."""
        assert self._before is not None
        change = self._before.parts
        for bucket in buckets(change):
            parts = [change[p] for p in bucket]
            now = [wide(local(p)) for p in bucket]
            for part, new in zip(parts, now, strict=True):
                part.neg_().add_(new.to(part.device))
        earlier = self._past.update
        sums = squares_and_products(change, [earlier.parts] if earlier else [], self._shards)
        if not (math.isfinite(sums[0]) and sums[0] > 0):
            self._past.update = None
            return None
        cosine = cosine_of(sums[1], sums[0], earlier.square) if earlier else None
        self._past.update = earlier or Remembered()
        self._memory.take(self._past.update, change, sums[0])
        return cosine

    def _note(self, found: Alignment) -> None:
        self.last = found
        self.counts[found.regime] += 1

    # -- its state, which travels inside the optimizer's -----------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and tensors only; sharded where the parameters are. Shares memory with this."""
        return {
            "step": self.step,
            "skips": self.skips,
            "longest_skips": self.longest_skips,
            "counts": dict(self.counts),
            **self._past.state_dict(self._parameters()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the GAC whose `state_dict` this is. Raises ValueError where it belongs to other parameters."""
        past = Past.restored(self.settings, state, self._memory, self._parameters())
        self._forget_all()
        self._past = past
        self.step, self.skips, self.longest_skips = state["step"], state["skips"], state["longest_skips"]
        self.counts.update(state["counts"])

    def _on_state_dict(self, _: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state["param_groups"][0][KEY] = self.state_dict()

    def _on_load_state_dict(self, optimizer: torch.optim.Optimizer) -> None:
        """Without a state in the optimizer's, what was before it does not come before what follows."""
        state = optimizer.param_groups[0].pop(KEY, None)
        if state is None:
            self._forget_all()
        else:
            self.load_state_dict(state)


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that makes the step, below wrappers that hold it as `optimizer`."""
    inner = getattr(optimizer, "optimizer", None)
    return _innermost(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer
