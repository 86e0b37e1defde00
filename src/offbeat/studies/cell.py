"""One cell of a study and what comes of it. Staleness is counted in publishes; a publish here is one optimizer update.

Invariant: a cell is data. All that determines its result is in it, its key is a digest of that, and what it gives
survives JSON. Knows no model and no file.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from offbeat.settings import Settings, settings_from
from offbeat.theory.pilot import edge_level, mismatch_level
from offbeat.theory.refresh import Refresh


class Scale(msgspec.Struct, frozen=True):
    """Task and sizes of a study: batch, the policy all its cells begin with. Lengths in tokens.

    `warm_start_target` is the exact match, sampled, that supervised learning brings the policy to. `evaluate_every`
    and `held_out` say how often and on how many prompts exact match is computed.
    """

    task: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "addition", "digits": 2})
    preset: str = "nano"
    prompts: int = 32
    group_size: int = 8
    max_new_tokens: int = 5
    context: int = 16
    warm_start_target: float = 0.15
    warm_start_batch_size: int = 256
    held_out: int = 512
    evaluate_every: int = 25

    def settings(self, learning_rate: float, steps: int, **learner: Any) -> Settings:
        """Settings of a run at a constant rate of which one publish is one optimizer update."""
        return settings_from(
            {
                "model": {
                    "preset": self.preset,
                    "warm_start_target": self.warm_start_target,
                    "warm_start_batch_size": self.warm_start_batch_size,
                },
                "task": {**self.task, "held_out": self.held_out},
                "rollout": {
                    "slots": self.prompts * self.group_size,
                    "max_new_tokens": self.max_new_tokens,
                    "context": self.context,
                },
                "schedule": {"train_batch_size": self.prompts * self.group_size, "group_size": self.group_size},
                "learner": {
                    "iterations": steps,
                    "learning_rate": learning_rate,
                    "warmup_iterations": 0,
                    "final_learning_rate_share": 1.0,
                    "measure_drift": False,
                    **learner,
                },
            }
        )


class Cell(msgspec.Struct, frozen=True):
    """One run: `kind` names what is done (see `measures`), `arm` what it stands for in its study.

    `options` are those of its kind, plain values. Seeds vary prompts and sampling; the start policy is the same.
    """

    study: str
    kind: str
    arm: str
    seed: int
    staleness: int
    refresh: Refresh
    learning_rate: float
    steps: int
    scale: Scale = Scale()
    options: dict[str, Any] = {}

    @property
    def until_collapse(self) -> bool:
        """Is nothing wanted of the run after it has collapsed? Option `until_collapse`, of kind `train`."""
        return bool(self.options.get("until_collapse", False))

    @property
    def key(self) -> str:
        """A digest [32 hex digits] of everything that determines the result: not of what a study calls it, so that
        studies may share cells."""
        unnamed = msgspec.structs.replace(self, study="", arm="")
        return hashlib.sha256(msgspec.json.encode(unnamed, order="sorted")).hexdigest()[:32]

    @property
    def settings(self) -> Settings:
        """Settings of its run; option `learner` changes those of that section."""
        return self.scale.settings(self.learning_rate, self.steps, **self.options.get("learner", {}))

    @property
    def mismatch_level(self) -> float:
        """The mismatch of behaviour and target at which a typical token meets the objective's bound."""
        return mismatch_level(self.settings.learner.objective.ratio_bounds)

    @property
    def edge_level(self) -> float:
        """The mismatch at which the planner takes stale data for unusable."""
        return edge_level(self.settings.learner.objective.ratio_bounds)

    @property
    def name(self) -> str:
        """For people: what tells it from the others of its study."""
        return f"{self.arm} S={self.staleness} lr={self.learning_rate:.3g} seed={self.seed}"


class Curves(msgspec.Struct):
    """A trained cell, one value a step in each list (shorter where it broke off), steps from 0.

    reward: mean of the batch; lag_kl: estimate of KL(behaviour || target); cosine: of this raw gradient with the one
    before (None where either is missing); update_norm: ||theta_{t+1} - theta_t||; lag_distance: ||theta_t - phi_t||
    from the policy that sampled; drift: ||theta_{t+1} - theta_0||. evaluations: (steps done, expected exact match of
    a sample on held-out prompts). control: see
    `piloted.Controls.summary`. broke: step at which weights or logits stopped being finite.
    """

    reward: list[float] = []
    gradient_norm: list[float] = []
    entropy: list[float] = []
    clip_share: list[float] = []
    lag_kl: list[float] = []
    cosine: list[float | None] = []
    update_norm: list[float] = []
    lag_distance: list[float] = []
    drift: list[float] = []
    evaluations: list[tuple[int, float]] = []
    control: dict[str, Any] = {}
    broke: int | None = None


class Result(msgspec.Struct):
    """What a cell gave: `values` by its kind, and the seconds of one core it took."""

    seconds: float
    values: dict[str, Any]
