"""What the main process and its workers say to each other. Weights never travel here: only where they lie.

main -> rollout  RolloutHello, OpenLane, LoadWeights, UnloadWeights, Sample, AbortSamples, GiveUpSamples, TakeUpSamples,
                 PauseSamples, ContinueSamples, AnswerHeldOut, TakeTurn
rollout -> main  LaneUp, WeightsLoaded, Sampled, TurnSampled, SampleFailed, SamplesGivenUp, Beat, HeldOutAnswers, ...
main -> learner  LearnerHello, TrainOn, ExportTo
learner -> main  LearnerUp, StepDone, Exported, WorkerFailed
main -> scorer   ScorerHello, ScoreThis
scorer -> main   ScorerUp, ScoreIs, ScoreRaised, WorkerFailed
main -> checker  CheckHello;    checker -> main   Preparing, ForeignCall, Checked, WorkerFailed
main -> preparer PrepareHello;  preparer -> main  Preparing, Prepared, WorkerFailed
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from offbeat.records import Batch, FinishReason, Prompt, Span, StepReport, Trajectory


class _Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages: frozen, tagged with its class name."""


class WorkerFailed(_Message, frozen=True):
    """The worker ends, and why, in one line. `bad_input`: the user's input is to blame (exit code 2)."""

    reason: str
    bad_input: bool = False


# -- rollout: a process hosts one lane or several, every message but the first names the one it is for or from --


class RolloutHello(_Message, frozen=True):
    """`origin` is the monotonic clock's value at run time 0."""

    run_directory: str
    settings: dict[str, Any]
    origin: float


class OpenLane(_Message, frozen=True):
    lane: int


class LoadWeights(_Message, frozen=True):
    lane: int
    version: int
    digest: str


class UnloadWeights(_Message, frozen=True):
    lane: int
    version: int


class Sample(_Message, frozen=True):
    """`episodes`: decode nothing before TakeTurn; each is held, under this version, until AbortSamples."""

    lane: int
    version: int
    prompt_ids: tuple[int, ...]
    trajectory_ids: tuple[int, ...]
    attempts: tuple[int, ...]
    episodes: bool = False


class TakeTurn(_Message, frozen=True):
    """The next turn of an episode: go on from `context_ids` [P]. `trajectory_id` below 0: of an evaluation, under
    `version`, `greedy` or at temperature 1. The turn before it, if under way, is forgotten."""

    lane: int
    trajectory_id: int
    attempt: int
    turn: int
    version: int
    context_ids: tuple[int, ...]
    max_new_tokens: int
    greedy: bool = False


class AbortSamples(_Message, frozen=True):
    lane: int
    trajectory_ids: tuple[int, ...]


class GiveUpSamples(_Message, frozen=True):
    """Leave each of these that is here as a parcel in the run directory, for another lane; answer SamplesGivenUp."""

    lane: int
    trajectory_ids: tuple[int, ...]
    keep_cache: bool


class TakeUpSamples(_Message, frozen=True):
    """Go on with the parcels of these."""

    lane: int
    trajectory_ids: tuple[int, ...]
    attempts: tuple[int, ...]


class PauseSamples(_Message, frozen=True):
    """Decode no trajectory until ContinueSamples."""

    lane: int


class ContinueSamples(_Message, frozen=True):
    """Every trajectory goes on under `version`, over its cache or after computing that again."""

    lane: int
    version: int
    keep_cache: bool


class AnswerHeldOut(_Message, frozen=True):
    """Answer every prompt twice: greedy, and sampled at temperature 1."""

    lane: int
    version: int
    prompts: tuple[tuple[int, ...], ...]


class LaneUp(_Message, frozen=True):
    lane: int
    slots: int


class WeightsLoaded(_Message, frozen=True):
    lane: int
    version: int
    digest: str


class Sampled(_Message, frozen=True):
    lane: int
    trajectory: Trajectory
    slot: int
    started: float
    ended: float


class TurnSampled(_Message, frozen=True):
    lane: int
    trajectory_id: int
    attempt: int
    turn: int
    span: Span
    finish_reason: FinishReason
    slot: int
    started: float
    ended: float


class SamplesGivenUp(_Message, frozen=True):
    """`slots[i]` is -1 where nothing was decoded yet; otherwise it was, from `started[i]` to `ended`."""

    lane: int
    trajectory_ids: tuple[int, ...]
    attempts: tuple[int, ...]
    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    started: tuple[float, ...]
    ended: float


class SampleFailed(_Message, frozen=True):
    lane: int
    trajectory_id: int
    attempt: int
    reason: str


class Beat(_Message, frozen=True):
    lane: int
    trajectory_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    busy_slots: int
    decoded: int
    parked: tuple[int, ...]
    cached: int


class HeldOutAnswers(_Message, frozen=True):
    """Token ids of the responses, in prompt order."""

    lane: int
    version: int
    greedy: tuple[tuple[int, ...], ...]
    sampled: tuple[tuple[int, ...], ...]


# -- learner ---------------------------------------------------------------------------------------------------


class LearnerHello(_Message, frozen=True):
    run_directory: str
    settings: dict[str, Any]
    version: int
    digest: str
    origin: float


class TrainOn(_Message, frozen=True):
    """`projection` and `rate` are those of the Train command."""

    batch: Batch
    projection: float = 0.0
    rate: float = 1.0


class ExportTo(_Message, frozen=True):
    directory: str


class LearnerUp(_Message, frozen=True):
    version: int


class StepGoesOn(_Message, frozen=True):
    """A step under way has made so many passes over micro-batches. Sent now and then, not for each."""

    iteration: int
    passes: int


class StepDone(_Message, frozen=True):
    version: int
    digest: str
    report: StepReport
    started: float
    ended: float


class Exported(_Message, frozen=True):
    directory: str


# -- scorer ----------------------------------------------------------------------------------------------------


class ScorerHello(_Message, frozen=True):
    settings: dict[str, Any]


class ScoreThis(_Message, frozen=True):
    ticket: int
    prompt: Prompt
    response: str


class ScorerUp(_Message, frozen=True):
    pass


class ScoreIs(_Message, frozen=True):
    ticket: int
    reward: float


class ScoreRaised(_Message, frozen=True):
    ticket: int
    reason: str


# -- checker and preparer --------------------------------------------------------------------------------------


class CheckHello(_Message, frozen=True):
    settings: dict[str, Any]


class PrepareHello(_Message, frozen=True):
    directory: str
    settings: dict[str, Any]


class Preparing(_Message, frozen=True):
    """`share` is the part done in [0, 1]."""

    note: str
    share: float


class ForeignCall(_Message, frozen=True):
    """Foreign code is called next. Unless another message follows within `seconds`, the preparation fails with
    `complaint`."""

    seconds: float
    complaint: str


class Checked(_Message, frozen=True):
    """Prompts and reward are sound."""


class Prepared(_Message, frozen=True):
    digest: str
    parameters: int


ToRollout: TypeAlias = (
    RolloutHello | OpenLane | LoadWeights | UnloadWeights | Sample | AbortSamples | GiveUpSamples | TakeUpSamples
    | PauseSamples | ContinueSamples | AnswerHeldOut | TakeTurn
)  # fmt: skip
FromRollout: TypeAlias = (
    LaneUp | WeightsLoaded | Sampled | TurnSampled | SampleFailed | SamplesGivenUp | Beat | HeldOutAnswers
    | WorkerFailed
)  # fmt: skip
ToLearner: TypeAlias = LearnerHello | TrainOn | ExportTo
FromLearner: TypeAlias = LearnerUp | StepGoesOn | StepDone | Exported | WorkerFailed
ToScorer: TypeAlias = ScorerHello | ScoreThis
FromScorer: TypeAlias = ScorerUp | ScoreIs | ScoreRaised | WorkerFailed
ToChecker: TypeAlias = CheckHello
FromChecker: TypeAlias = Preparing | ForeignCall | Checked | WorkerFailed
ToPreparer: TypeAlias = PrepareHello
FromPreparer: TypeAlias = Preparing | Prepared | WorkerFailed
