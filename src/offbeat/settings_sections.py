"""The sections of the settings but `task`: keys, defaults, ranges, derived values. Knows no file, no other section."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from offbeat.objectives import Aggregation, Grpo, ObjectiveSettings
from offbeat.records import LEAST_TEMPERATURE
from offbeat.task_settings import MOST, Positive, Seconds, Section

Count = Annotated[int, Field(ge=0, le=MOST)]

SPLICING = frozenset({"partial", "in-flight"})
"""Schedules under which a new version goes on with responses under way."""


class ModelSettings(Section):
    """The policy: a Hugging Face directory (`path`), or a preset built and warm-started here."""

    path: str = ""
    preset: Literal["nano", "micro"] = "nano"
    warm_start_target: float = Field(0.05, ge=0, le=1)
    """The supervised phase ends once this share of samples is expected to match exactly. Presets only."""
    warm_start_max_steps: Positive = 1500
    warm_start_learning_rate: float = Field(2e-3, gt=0)
    warm_start_batch_size: Positive = 64


class RolloutSettings(Section):
    """How responses are sampled. All of it is part of what the behaviour policy is."""

    lanes: int = Field(1, ge=1, le=64)
    """Rollout units, each with `slots` slots of its own."""
    lanes_per_process: int = Field(1, ge=1, le=64)
    """Lanes that share one process and its engine."""
    slots: int = Field(64, ge=1, le=4096)
    cache_tokens: Positive | None = None
    """Tokens of keys and values a lane may hold; beyond them responses are parked. Without a value slots x context."""
    max_new_tokens: Positive = 168
    context: Positive = 192
    """Longest prompt + response in tokens."""
    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: Count = 0
    engine: Literal["local", "vllm"] = "local"
    """`local`: offbeat's own, on the CPU; `vllm`: vLLM in an environment of its own (docs/vllm.md)."""
    vllm_python: str = ".venv-vllm/bin/python"
    """The Python of vLLM's environment; the environment variable OFFBEAT_VLLM_PYTHON goes before it."""
    vllm_dtype: Literal["float32", "bfloat16"] = "float32"
    """What vLLM computes in. The learner's weights are float32: bfloat16 is faster and samples from a policy beside."""

    @property
    def processes(self) -> int:
        return -(-self.lanes // self.lanes_per_process)


class ScheduleSettings(Section):
    """Who runs when. Sizes are counted in trajectories."""

    name: Literal["multi-version", "sync", "one-step-off", "partial", "in-flight", "repack"] = "multi-version"
    max_staleness: int = Field(2, ge=0, le=64)
    max_versions: Positive | None = None
    """Versions alive in a lane at once; without a value K + 1, which never binds (2 at least where versions splice)."""
    group_size: Positive = 8
    train_batch_size: Positive = 128
    rollout_batch_size: Positive | None = None
    """Trajectories outstanding at most; without a value (K + 1) x train_batch_size, the most that C3 allows."""

    at_bound: Literal["drain", "evict"] = "drain"
    """What multi-version does at the bound: hold the next batch back until the oldest are finished, so that nothing is
    dropped, or give up what is too old and queue its prompt again (which costs C2, and favours short responses)."""
    migration: Literal["cache", "prefill", "off"] = "cache"
    """How responses under way move between lanes: with their keys and values, computing these again, or never."""
    legacy_fill: bool = False
    """May what has no slot under the newest version start under an older one that a lane stays with? Never under the
    oldest. Asked by multi-version and repack; pays where responses cannot move and weights take long to come."""
    rebalance_seconds: Seconds = 5.0
    """Lanes are divided among versions anew after so long, besides after every publish."""

    @property
    def staleness_bound(self) -> int:
        """What C3 promises. `partial` and `in-flight` promise nothing: for them it only sizes what is in hand."""
        return {"sync": 0, "one-step-off": 1}.get(self.name, self.max_staleness)

    @property
    def live_versions(self) -> int:
        if self.name == "repack":
            return 1
        return self.max_versions or max(self.staleness_bound + 1, 2 if self.name in SPLICING else 1)

    @property
    def outstanding_limit(self) -> int:
        return self.rollout_batch_size or (self.staleness_bound + 1) * self.train_batch_size


class AlignSettings(Section):
    """Gradient alignment control of the optimizer's step, see `offbeat.align`, whose names and defaults these are."""

    mode: Literal["off", "observe", "orth", "cap", "ratio", "ramp"] = "off"
    """`off` measures nothing; `observe` measures and changes nothing; the others project."""
    c_low: float = Field(0.05, ge=0, lt=1)
    """Gradients up to this cosine with the reference pass; above it they are projected."""
    c_high: float = Field(0.5, gt=0, le=1)
    """Above this cosine the update is skipped; 1 never skips."""
    two_sided: bool = False
    max_skips: Count = 4
    """After so many skips in a row an update is projected and made all the same; 0: never."""
    reference: Literal["raw", "applied"] = "raw"
    on_skip: Literal["update", "keep"] = "update"
    direction: Literal["previous", "none", "random"] = "previous"
    """`none` (shrink only) and `random` are controls for experiments."""
    rescale: bool = False
    clip: Literal["after", "before"] = "after"
    """Is the gradient's norm clipped after control, or before?"""
    history: Literal["float32", "bfloat16"] = "float32"
    offload: bool = False
    update_cosine: bool = True
    lag_span: int = Field(0, ge=0, le=256)
    """Also measure cosines at lags 1, 2, 4, ... S, S + 1 and 2 S updates, for S = lag_span; keeps 2 S gradients."""


Target = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class LoraSettings(Section):
    """Train an adapter beside the model's weights, which stay as they are (LoRA, arXiv 2106.09685)."""

    rank: int = Field(16, ge=1, le=512)
    alpha: Positive = 32
    """The adapter counts alpha / rank times."""
    targets: tuple[Target, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1
    )
    """Matrices of every layer that get an adapter."""


class LearnerSettings(Section):
    """One RL iteration: group-relative advantages, the objective, AdamW."""

    iterations: Positive = 600
    learning_rate: float = Field(3.5e-4, gt=0, lt=1)
    warmup_iterations: Count = 5
    final_learning_rate_share: float = Field(0.1, ge=0, le=1)
    """The rate falls linearly to this share of itself at the last iteration; 1 keeps it constant."""
    weight_decay: float = Field(0.0, ge=0, le=1)
    max_gradient_norm: float = Field(1.0, gt=0)
    objective: ObjectiveSettings = Grpo()
    """By name, with settings of its own: docs/objectives.md."""
    aggregation: Aggregation | None = None
    """`token`: mean over all tokens of the batch; `sequence`: mean over trajectories of each one's token mean;
    `constant`: sum over tokens, divided by trajectories x rollout.max_new_tokens. Without a value the objective's."""
    baseline: Literal["group-mean", "leave-one-out", "opo", "none"] = "group-mean"
    """What a reward is compared with: its group's mean, the mean of its siblings, OPO's length-weighted mean, 0."""
    normalise_advantage: bool | None = None
    """Divide the advantage by the group's standard deviation? Without a value: as objective and baseline define it."""
    ess_reference: float | None = Field(None, gt=0, le=1)
    """VCPO: an update's rate is multiplied by sqrt(min(1, ESS / this)); without a value it is not."""
    staleness_rate: Literal["constant", "inverse"] = "constant"
    """`inverse`: an update's rate is divided by the mean staleness of its trajectories where that is above 1."""
    measure_drift: bool = True
    """Measure parameter distances each iteration. Takes K + 3 copies of the parameters, for large models fewer."""
    mismatch_trajectories: Count = 4
    """Of each batch so many trajectories are computed again under the version that sampled them, to tell the engine's
    error from the policy's lag. Needs measure_drift; not where versions splice; 0: never."""
    updates_per_iteration: Positive = 1
    micro_batch_tokens: Positive = 8192
    """Padded tokens in one forward pass; larger batches accumulate gradients."""
    matmul_precision: Literal["float32", "bfloat16"] = "float32"
    """What the learner's matrix products are computed in; all else is float32. `bfloat16`, where the processor has it,
    makes a step of a model that is not tiny some 1.4 times as fast, log-probs and gradients less exact."""
    recompute_activations: bool = False
    """Activation checkpointing: the backward pass computes each layer again, for much less memory."""
    processes: int = Field(1, ge=1, le=64)
    """Processes of one machine that share an update's micro-batches."""
    sharding: Literal["none", "fsdp2"] = "none"
    """`none`: each of them holds policy and optimizer state whole; `fsdp2`: each holds its part (docs/cluster.md)."""
    max_consecutive_skips: Positive = 5
    autopilot: bool = False
    """Keep the run inside its stability limits while it runs: projection, then learning rate, then the staleness bound
    are moved by what the iterations show, and let go again (docs/stability.md)."""
    align: AlignSettings = AlignSettings()
    lora: LoraSettings | None = None
    """With this section (it may be empty) an adapter is trained and a version is an adapter; otherwise all weights."""

    @model_validator(mode="before")
    @classmethod
    def _clip_of_the_objective(cls, data: Any) -> Any:
        """`clip_low` and `clip_high` may stand in this section, too, as they did before there were objectives."""
        if not isinstance(data, dict) or not {"clip_low", "clip_high"} & data.keys():
            return data
        objective = data.get("objective", {})
        table = {"name": objective} if isinstance(objective, str) else dict(objective)
        clips = {key: data[key] for key in ("clip_low", "clip_high") if key in data}
        rest = {key: value for key, value in data.items() if key not in clips}
        return rest | {"objective": clips | table}

    @property
    def controls_alignment(self) -> bool:
        return self.autopilot or self.align.mode != "off"

    @property
    def loss_aggregation(self) -> Aggregation:
        return self.aggregation or self.objective.AGGREGATION

    @property
    def advantage_is_normalised(self) -> bool:
        if self.normalise_advantage is not None:
            return self.normalise_advantage
        return self.objective.NORMALISES and self.baseline == "group-mean"


def no_ray_address(address: str) -> str:
    """Why a run would not take this as the address of a cluster; empty where it would."""
    if address.startswith("ray://"):
        return "a run does not go through Ray Client"
    return "" if address == "auto" or re.fullmatch(r"\S+:\d{1,5}", address) else "not auto and not HOST:PORT"


class RaySettings(Section):
    """The cluster of a run whose `run.backend` is "ray": docs/cluster.md."""

    address: str = ""
    """`auto` or HOST:PORT of a cluster that this machine is a node of. Without a value Ray is started here."""
    lane_cpus: float = Field(1.0, gt=0)
    """What a rollout process reserves."""
    lane_gpus: float = Field(0.0, ge=0)
    """The same, for an engine that uses them: the built-in one does not."""
    learner_cpus: float = Field(1.0, gt=0)
    """What each of the learner's processes reserves."""
    shared_directory: bool = False
    """Does every node see the run directory? Then the learner may run on any; otherwise it stays beside the driver."""

    @field_validator("lane_cpus", "lane_gpus", "learner_cpus")
    @classmethod
    def _in_parts(cls, amount: float, told: ValidationInfo) -> float:
        if amount != round(amount, 4):
            raise ValueError(f"ray.{told.field_name} = {amount!r}: Ray counts in parts of 1/10000; give {amount:.4f}")
        return amount

    @field_validator("address")
    @classmethod
    def _no_client(cls, address: str) -> str:
        if address and (problem := no_ray_address(address)):
            client = "start it on a node of the cluster, or by `ray job submit`, with address auto"
            remedy = client if address.startswith("ray://") else "give one of these"
            raise ValueError(f"ray.address = {address!r}: {problem}; {remedy}")
        return address


class RunSettings(Section):
    """The run itself: seed, limits, leases, what is kept."""

    backend: Literal["local", "ray"] = "local"
    """Where lanes and learner run: processes of this machine, or actors of a Ray cluster."""
    seed: Count = 0
    threads: Positive = 1
    evaluate_every: Count = 100
    """Held-out evaluation every so many iterations; 0: before and after only."""
    time_limit_seconds: Seconds | None = None
    lease_seconds: float = Field(60.0, ge=0.1, le=1e9)
    """A trajectory without a new token for so long is restarted."""
    stall_seconds: Seconds = 180.0
    """The run fails, naming the culprit, when nothing at all progressed for so long."""
    max_attempts: Positive = 4
    max_quarantined_in_a_row: Positive = 8
    keep_versions: int = Field(8, ge=1)
    """Newest retired versions whose weights stay on disk, for `verify --recompute`."""
    tensorboard: bool = True
    """Write the run's numbers to RUN/tensorboard while it runs, too."""
    wandb: bool = False
    """Send them to Weights & Biases, too; how is said by its own variables, as WANDB_MODE=offline."""
    trackio: bool = False
    """Write them to trackio, too."""
    project: str = Field("offbeat", min_length=1, max_length=128)
    """What W&B and trackio file the run under."""
