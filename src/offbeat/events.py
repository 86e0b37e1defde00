"""What happened (events) and what to do (commands). The scheduler maps one to the other and nothing else.

Both are plain frozen records that survive JSON: the run log stores every event with the commands it caused, so
folding the events again gives the same state and the same commands (the twin law; how a run is resumed).
Token payloads never travel here: a `Finished` names its trajectory, the payload lies beside it in the run log.
A lane has a new *life* with every `StartLane`; in a session the first is life 1. What lanes say names the life it comes
from (None: the world hears none but the present one), and what an earlier life said changes nothing (zombie rule).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from offbeat.records import FinishReason, StepReport


class _Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    pass


class _Command(msgspec.Struct, frozen=True, tag=True, tag_field="command"):
    pass


# -- events ----------------------------------------------------------------------------------------------------


class Opened(_Event, frozen=True):
    """A main process took the run up: session 0 is the first, more are resumes. Nothing of an earlier one runs."""

    session: int


class LaneReady(_Event, frozen=True):
    """Lane `lane` answered with `slots` free slots and no version loaded."""

    lane: int
    slots: int
    life: int | None = None


class LaneLost(_Event, frozen=True):
    """The process behind a lane ended or was ended; all it held is gone.

    Not to blame is a lane that was ended only because another in its process, `for_lane`, was started anew, nor one
    that `left` with its machine (preempted, scaled down, out of reach): it comes back once there is room again.
    """

    lane: int
    reason: str
    life: int | None = None
    for_lane: int | None = None
    left: bool = False

    @property
    def blamed(self) -> bool:
        return self.for_lane is None and not self.left


class VersionLoaded(_Event, frozen=True):
    """The lane holds `version`; checksum, version handshake and log-prob canary passed."""

    lane: int
    version: int
    life: int | None = None


class Progress(_Event, frozen=True):
    """A lane's heartbeat: decoded tokens so far of each trajectory it holds, queued ones as 0.

    `decoded` counts every token the lane decoded since it started, evaluation included. `parked` are trajectories
    that stand still until there is room for their keys and values; `cached` counts the tokens there is room taken for.
    """

    lane: int
    trajectory_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    busy_slots: int
    decoded: int = 0
    parked: tuple[int, ...] = ()
    cached: int = 0
    life: int | None = None


class Departed(_Event, frozen=True):
    """A lane gave trajectories up that were to move, with all that another needs to go on with them.

    Those that ended before are missing. `slots` and `tokens` are what they had; they were decoded there from
    `started[i]` to `ended`.
    """

    lane: int
    trajectory_ids: tuple[int, ...]
    attempts: tuple[int, ...]
    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    started: tuple[float, ...]
    ended: float


class Finished(_Event, frozen=True):
    """One attempt at a trajectory ended normally. Times are seconds of run time, as measured by the lane.

    `version` is the one that sampled its first token, `spans` the number of its spans: 1 under C1.
    """

    trajectory_id: int
    attempt: int
    lane: int
    slot: int
    version: int
    tokens: int
    finish_reason: FinishReason
    started: float
    ended: float
    spans: int = 1


class GenerationFailed(_Event, frozen=True):
    """One attempt at a trajectory failed in the engine."""

    trajectory_id: int
    attempt: int
    reason: str


class PromptRejected(_Event, frozen=True):
    """A prompt cannot be generated from at all (longer than the context, not encodable)."""

    group_id: int
    reason: str


class Scored(_Event, frozen=True):
    """The reward of one attempt at a trajectory, a finite number."""

    trajectory_id: int
    attempt: int
    reward: float


class ScoreFailed(_Event, frozen=True):
    """The reward function raised, ran out of time, or gave something that is not a finite number."""

    trajectory_id: int
    attempt: int
    reason: str


class LearnerReady(_Event, frozen=True):
    """The learner answered and holds `version`."""

    version: int


class LearnerLost(_Event, frozen=True):
    """The learner process ended or was ended."""

    reason: str


class Trained(_Event, frozen=True):
    """One RL iteration is done and version `version` = iteration + 1 is published with this digest.

    Logging this event is the commit point: the batch is consumed if and only if it is in the log.
    """

    version: int
    digest: str
    report: StepReport
    started: float
    ended: float


class Learning(_Event, frozen=True):
    """The learner made `passes` passes over parts of the batch of `iteration`. Said only where a step takes long."""

    iteration: int
    passes: int


class Rebuilt(_Event, frozen=True):
    """The files of `version` were damaged; a learner of the version before made it anew from the same batch.

    `digest` is that of its weights now: the announced one where the learner's arithmetic repeats itself bit for bit.
    """

    version: int
    digest: str
    reason: str


class Marked(_Event, frozen=True):
    """`done` of the `marks` that an evaluation under way needs have been given. Said now and then, not for each."""

    version: int
    done: int
    marks: int


class Evaluated(_Event, frozen=True):
    """Exact match of `version` on the held-out prompts, greedy and sampled, in [0, 1]."""

    version: int
    prompts: int
    exact_match_greedy: float
    exact_match_sampled: float


class EvaluationFailed(_Event, frozen=True):
    """An evaluation could not be completed; it is asked for again."""

    version: int
    reason: str


class Tick(_Event, frozen=True):
    """Nothing else happened for a while. Carries time only."""


class Suspended(_Event, frozen=True):
    """The world itself stood still for the last `seconds` (suspended, frozen, blocked) and heard nobody.

    It comes before anything that was said meanwhile. A world of virtual time never stands still, however far it jumps.
    """

    seconds: float


class StopRequested(_Event, frozen=True):
    """The user asked to stop (Ctrl-C, SIGTERM)."""

    reason: str


class WorldFailed(_Event, frozen=True):
    """Something no retry mends (full disk, unreadable weights). Ends the run with this reason."""

    reason: str


Event: TypeAlias = (
    Opened | LaneReady | LaneLost | VersionLoaded | Progress | Departed | Finished | GenerationFailed | PromptRejected
    | Scored | ScoreFailed | LearnerReady | LearnerLost | Learning | Trained | Rebuilt | Marked | Evaluated
    | EvaluationFailed | Tick | Suspended | StopRequested | WorldFailed
)  # fmt: skip

# -- commands --------------------------------------------------------------------------------------------------


class StartLane(_Command, frozen=True):
    """Start (or replace, ending what runs there) the process behind a lane."""

    lane: int
    reason: str = ""


class StartLearner(_Command, frozen=True):
    """Start (or replace) the learner with the checkpoint of `version`."""

    version: int
    reason: str = ""


class LoadVersion(_Command, frozen=True):
    lane: int
    version: int


class UnloadVersion(_Command, frozen=True):
    lane: int
    version: int


class Generate(_Command, frozen=True):
    """Sample these trajectories (all of one group, so of one prompt) on `lane` under `version`.

    `attempts[i]` belongs to `trajectory_ids[i]`. A trajectory's id fixes its seed, so another attempt under the
    same version samples the same tokens.
    """

    lane: int
    version: int
    group_id: int
    prompt_id: int
    trajectory_ids: tuple[int, ...]
    attempts: tuple[int, ...]


class Abort(_Command, frozen=True):
    lane: int
    trajectory_ids: tuple[int, ...]


class Move(_Command, frozen=True):
    """Give these trajectories up, for lane `to`; `Departed` is the answer. `keep_cache`: with keys and values."""

    lane: int
    to: int
    trajectory_ids: tuple[int, ...]
    keep_cache: bool = True


class Attach(_Command, frozen=True):
    """Go on, on `lane`, with trajectories that departed from lane `origin` in the event just handled."""

    lane: int
    origin: int
    trajectory_ids: tuple[int, ...]
    attempts: tuple[int, ...]


class Pause(_Command, frozen=True):
    """The lane decodes nothing of what it holds until a `Continue`. Evaluations go on."""

    lane: int


class Continue(_Command, frozen=True):
    """All that the lane holds goes on under `version`, a new span of each response that has begun.

    `keep_cache`: over the keys and values of the earlier versions; otherwise prompt and tokens so far are computed
    again (re-prefill). Given only by schedules that do not keep C1.
    """

    lane: int
    version: int
    keep_cache: bool


class Score(_Command, frozen=True):
    trajectory_id: int
    attempt: int
    group_id: int
    prompt_id: int


class Train(_Command, frozen=True):
    """Consume these groups as the batch of `iteration`. `attempts[i]` are those of group i's trajectories.

    The autopilot's levers: strength of `projection` in [0, 1], factor of the learning `rate`.
    """

    iteration: int
    group_ids: tuple[int, ...]
    attempts: tuple[tuple[int, ...], ...]
    projection: float = 0.0
    rate: float = 1.0


class Steer(_Command, frozen=True):
    """Announces that the autopilot moved a lever, and why. Staleness is the bound K that admission keeps."""

    version: int
    lever: Literal["projection", "learning rate", "staleness"]
    before: float
    after: float
    pressure: float
    reason: str


class Evaluate(_Command, frozen=True):
    lane: int
    version: int


class Quarantine(_Command, frozen=True):
    """Announces that a group left the run without being trained on, and why. Nothing needs to be done."""

    group_id: int
    reason: str


class Evict(_Command, frozen=True):
    """Announces that a group can never be trained on any more, being too old; its prompt will be issued again."""

    group_id: int
    prompt_id: int
    version: int


class Retire(_Command, frozen=True):
    """No trajectory needs `version` any more."""

    version: int


class Stop(_Command, frozen=True):
    """End the run: `finished` reached its goal, `interrupted` can be resumed, `failed` names a culprit."""

    outcome: Literal["finished", "interrupted", "failed"]
    reason: str


Command: TypeAlias = (
    StartLane | StartLearner | LoadVersion | UnloadVersion | Generate | Abort | Move | Attach | Pause | Continue
    | Score | Train | Steer | Evaluate | Quarantine | Evict | Retire | Stop
)  # fmt: skip
