"""Gradient alignment control as a callback of `transformers.Trainer` and what is made of it (TRL's trainers).

The control itself is in the optimizer's hooks; this attaches them when training begins and adds the numbers to the
trainer's logs. Needs `transformers`; nothing else of this folder does.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offbeat.align.gac import GAC
from offbeat.align.rule import AlignSettings


class AlignmentCallback(TrainerCallback):
    """`Trainer(..., callbacks=[AlignmentCallback(mode="cap")])`, or `AlignmentCallback.add_to(trainer, mode="cap")`.

    Its state is saved and resumed with the trainer's optimizer. `gac` is there from the beginning of training.
    The trainer clips before the callback is asked; for the other order give it `max_grad_norm=0` and this `max_norm`.
    """

    def __init__(self, settings: AlignSettings | None = None, **changes: Any) -> None:
        self.gac: GAC | None = None
        self._settings = AlignSettings(**changes) if settings is None else settings
        if settings is not None and changes:
            raise TypeError("give settings or single ones by name, not both")
        self._steps = 0
        self._since_log: dict[str, list[float]] = defaultdict(list)

    @classmethod
    def add_to(cls, trainer: Trainer, settings: AlignSettings | None = None, **changes: Any) -> AlignmentCallback:
        """Put one first among the trainer's callbacks, so that its numbers reach every logger."""
        callback = cls(settings, **changes)
        trainer.callback_handler.callbacks.insert(0, callback)
        return callback

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.gac is not None:
            self.gac.detach()
        self.gac = GAC(kwargs["optimizer"], self._settings)
        self._steps = self.gac.step

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take up what the step was. A step that never came to the optimizer is an overflow of mixed precision."""
        assert self.gac is not None
        if self.gac.step == self._steps and self._settings.mode != "off":
            self.gac.missed()
        self._steps = self.gac.step
        for name, value in (self.gac.last.metrics() if self.gac.last else {}).items():
            self._since_log[name].append(value)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the means since the last log of training to it: of cosines over the steps where they are valid."""
        if logs is None or "loss" not in logs or not self._since_log:
            return
        means = {name: sum(values) / len(values) for name, values in self._since_log.items()}
        self._since_log.clear()
        logs.update(means)
        if state.log_history:
            state.log_history[-1].update(means)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.gac is not None:
            self.gac.detach()
