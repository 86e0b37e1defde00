"""What the main process and its workers say to each other. Weights never travel here: only where they lie.

    main -> lane     LaneHello, LoadWeights, UnloadWeights, Sample, AbortSamples, AnswerHeldOut
    lane -> main     LaneUp, WeightsLoaded, Sampled, SampleFailed, Beat, HeldOutAnswers, WorkerFailed
    main -> learner  LearnerHello, TrainOn, ExportTo
    learner -> main  LearnerUp, StepDone, Exported, WorkerFailed
    main -> scorer   ScorerHello, ScoreThis
    scorer -> main   ScorerUp, ScoreIs, ScoreRaised, WorkerFailed
    main -> preparer PrepareHello;  preparer -> main  Preparing, Prepared, WorkerFailed
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from offbeat.records import Batch, Prompt, StepReport, Trajectory


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class WorkerFailed(_Message):
    """The worker ends, and why, in one line. `bad_input`: the user's input is to blame (exit code 2)."""

    reason: str
    bad_input: bool = False


# -- lane ------------------------------------------------------------------------------------------------------


class LaneHello(_Message):
    """`origin` is the monotonic clock's value at run time 0."""

    lane: int
    run_directory: str
    settings: dict[str, Any]
    origin: float


class LoadWeights(_Message):
    version: int
    digest: str


class UnloadWeights(_Message):
    version: int


class Sample(_Message):
    version: int
    prompt_ids: tuple[int, ...]
    trajectory_ids: tuple[int, ...]
    attempts: tuple[int, ...]


class AbortSamples(_Message):
    trajectory_ids: tuple[int, ...]


class AnswerHeldOut(_Message):
    """Answer every prompt twice: greedy, and sampled at temperature 1."""

    version: int
    prompts: tuple[tuple[int, ...], ...]


class LaneUp(_Message):
    slots: int


class WeightsLoaded(_Message):
    version: int
    digest: str


class Sampled(_Message):
    trajectory: Trajectory
    slot: int
    started: float
    ended: float


class SampleFailed(_Message):
    trajectory_id: int
    attempt: int
    reason: str


class Beat(_Message):
    trajectory_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    busy_slots: int
    decoded: int


class HeldOutAnswers(_Message):
    """Token ids of the responses, in prompt order."""

    version: int
    greedy: tuple[tuple[int, ...], ...]
    sampled: tuple[tuple[int, ...], ...]


# -- learner ---------------------------------------------------------------------------------------------------


class LearnerHello(_Message):
    run_directory: str
    settings: dict[str, Any]
    version: int
    digest: str
    origin: float


class TrainOn(_Message):
    batch: Batch


class ExportTo(_Message):
    directory: str


class LearnerUp(_Message):
    version: int


class StepDone(_Message):
    version: int
    digest: str
    report: StepReport
    started: float
    ended: float


class Exported(_Message):
    directory: str


# -- scorer ----------------------------------------------------------------------------------------------------


class ScorerHello(_Message):
    settings: dict[str, Any]


class ScoreThis(_Message):
    ticket: int
    prompt: Prompt
    response: str


class ScorerUp(_Message):
    pass


class ScoreIs(_Message):
    ticket: int
    reward: float


class ScoreRaised(_Message):
    ticket: int
    reason: str


# -- preparer --------------------------------------------------------------------------------------------------


class PrepareHello(_Message):
    directory: str
    settings: dict[str, Any]


class Preparing(_Message):
    """`share` is the part done in [0, 1]."""

    note: str
    share: float


class Prepared(_Message):
    digest: str
    parameters: int


ToLane: TypeAlias = LaneHello | LoadWeights | UnloadWeights | Sample | AbortSamples | AnswerHeldOut
FromLane: TypeAlias = LaneUp | WeightsLoaded | Sampled | SampleFailed | Beat | HeldOutAnswers | WorkerFailed
ToLearner: TypeAlias = LearnerHello | TrainOn | ExportTo
FromLearner: TypeAlias = LearnerUp | StepDone | Exported | WorkerFailed
ToScorer: TypeAlias = ScorerHello | ScoreThis
FromScorer: TypeAlias = ScorerUp | ScoreIs | ScoreRaised | WorkerFailed
ToPreparer: TypeAlias = PrepareHello
FromPreparer: TypeAlias = Preparing | Prepared | WorkerFailed
