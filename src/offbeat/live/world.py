"""The live world: commands go to worker processes, what they say comes back as events.

It adds no decision of its own. What it owes the scheduler: what a lane says names the lane's life (what was heard of a
process before it was replaced still comes, as events), payload is in the run log with the event that names it, time
never runs backwards, also over resumes, and where this process stood still it says so before it tells what it heard.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offbeat import events as e
from offbeat.backends import messages as m
from offbeat.backends.backend import Backend
from offbeat.backends.local import Died, Name
from offbeat.errors import OffbeatError, TaskError
from offbeat.live.export import LEARNER
from offbeat.live.held_out import HeldOutDesk
from offbeat.live.lanes import LaneDesk
from offbeat.live.prompts import PromptBook
from offbeat.live.runlog import RunLog
from offbeat.live.scoring import Scoring, Verdict
from offbeat.live.versions import VersionShelf
from offbeat.models.prompts import misfit
from offbeat.records import Prompt
from offbeat.settings import Settings

TICK_SECONDS = 1.0


class LiveWorld:
    """ports.World over a backend. `start` is the run time at which this session begins."""

    def __init__(
        self, directory: Path, settings: Settings, log: RunLog, backend: Backend, prompts: PromptBook,
        shelf: VersionShelf, session: int, start: float,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.settings = settings
        self.log = log
        self.backend = backend
        self.prompts = prompts
        self.shelf = shelf
        self.origin = time.monotonic() - start
        self._dump: dict[str, Any] = settings.model_dump(mode="json")
        self._now = start
        self._pending: deque[e.Event] = deque([e.Opened(session)])
        self._stop_reason = ""
        self._listened_at = start
        hello = m.ScorerHello(self._dump)
        self.scoring = Scoring(backend, hello, settings.task.reward_seconds, settings.run.max_attempts)
        self.held_out = HeldOutDesk(prompts, self.scoring)
        self.lanes = LaneDesk(backend, directory, settings.rollout.lanes_per_process, self._dump, self.origin)

    def start(self) -> None:
        """Start what judges: the scorer."""
        self.scoring.start()

    # -- World -----------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._now

    def next_event(self) -> e.Event:
        deadline = self._clock() + TICK_SECONDS
        self.lanes.drop_unclaimed()
        while not self._pending:
            if self._stop_reason:
                self._pending.append(e.StopRequested(self._stop_reason))
                self._stop_reason = ""
                break
            now = self._clock()
            if now >= deadline:
                self._pending.append(e.Tick())
                break
            self._listen(deadline)
        before, self._now = self._now, max(self._now, self._clock())
        if self._now - before > 2 * TICK_SECONDS and not isinstance(self._pending[0], e.Opened):
            self._pending.appendleft(e.Suspended(self._now - before - TICK_SECONDS))
        event = self._pending.popleft()
        if isinstance(event, e.Departed):
            self.lanes.offer(event)
        return event

    def perform(self, command: e.Command) -> None:
        try:
            self._deeds[type(command)](self, command)
        except OSError as error:
            self._pending.append(e.WorldFailed(f"{type(command).__name__}: {error.strerror or error}"))
        except OffbeatError as error:
            self._pending.append(e.WorldFailed(str(error)))

    def ask_to_stop(self, reason: str) -> None:
        """Safe in a signal handler: the next event will be StopRequested."""
        self._stop_reason = reason
        self.backend.wake()

    def _clock(self) -> float:
        return time.monotonic() - self.origin

    # -- hearing ---------------------------------------------------------------------------------------------

    def _listen(self, until: float) -> None:
        """Hear what has been said, then judge who is late: an answer that lies there was in time."""
        limit = self.scoring.deadline
        heard = self.backend.poll((until if limit is None else min(until, limit)) - self._clock())
        now = self._clock()
        stood = now - self._listened_at - 2 * TICK_SECONDS
        if stood > 0:  # nobody was listened to, and whom a freeze hit as well could not answer
            self.scoring.excuse(stood)
        self._listened_at = now
        for name, message in heard:
            if name.kind == "rollout":
                self._from_rollout(name, message)
            elif name == LEARNER:
                self._from_learner(message)
            else:
                self._from_judge(message)
        self._judge_lateness(now)

    def _judge_lateness(self, now: float) -> None:
        if self.scoring.deadline is not None and now >= self.scoring.deadline:
            for verdict in self.scoring.out_of_time():
                self._judged(verdict)
        if self.scoring.hopeless:
            self._pending.append(e.WorldFailed(self.scoring.hopeless))

    def _from_rollout(self, name: Name, message: Any) -> None:
        match message:
            case m.Sampled():
                self._sampled(message)
            case m.HeldOutAnswers():
                self.held_out.score(message)
                self.scoring.go_on(self._clock())
            case Died():
                self._pending += self.lanes.lost(name, message.reason, left=message.left)
            case m.WorkerFailed():
                pass  # it ends: `Died` follows, with this reason
            case _:
                self._pending.append(self.lanes.heard(message))

    def _sampled(self, message: m.Sampled) -> None:
        trajectory = self.prompts.with_text(message.trajectory)
        self.log.add_trajectory(trajectory)
        self._pending.append(
            e.Finished(
                trajectory_id=trajectory.trajectory_id,
                attempt=trajectory.attempt,
                lane=message.lane,
                slot=message.slot,
                version=trajectory.version,
                tokens=len(trajectory.token_ids),
                finish_reason=trajectory.finish_reason,
                started=message.started,
                ended=message.ended,
                spans=len(trajectory.spans),
            )
        )

    def _from_learner(self, message: Any) -> None:
        match message:
            case m.LearnerUp():
                self._pending.append(e.LearnerReady(message.version))
            case m.StepGoesOn():
                self._pending.append(e.Learning(message.iteration, message.passes))
            case m.StepDone():
                self.shelf.publish(message.version, message.digest)
                self._pending.append(
                    e.Trained(message.version, message.digest, message.report, message.started, message.ended)
                )
            case Died():
                self._pending.append(e.LearnerLost(message.reason))

    def _from_judge(self, message: Any) -> None:
        now = self._clock()
        match message:
            case m.ScorerUp():
                self.scoring.up(now)
            case m.ScoreIs():
                self._judged(self.scoring.answered(message.ticket, message.reward, "", now))
            case m.ScoreRaised():
                self._judged(self.scoring.answered(message.ticket, None, message.reason, now))
            case Died():
                for verdict in self.scoring.died(message.reason):
                    self._judged(verdict)

    def _judged(self, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        event = self.held_out.judged(verdict, self._clock())
        if event is not None:
            self._pending.append(event)
        if not isinstance(verdict.key, tuple) or verdict.key[0] != "trajectory":
            return
        _, trajectory_id, attempt = verdict.key
        if verdict.reward is None:
            self._pending.append(e.ScoreFailed(trajectory_id, attempt, verdict.reason))
        else:
            self._pending.append(e.Scored(trajectory_id, attempt, verdict.reward))

    # -- doing -----------------------------------------------------------------------------------------------

    def _start_lane(self, command: e.StartLane) -> None:
        self._pending += self.lanes.start(command.lane)

    def _start_learner(self, command: e.StartLearner) -> None:
        digest = self.shelf.digests[command.version]
        hello = m.LearnerHello(str(self.directory), self._dump, command.version, digest, self.origin)
        self.backend.start(LEARNER, hello)

    def _load(self, command: e.LoadVersion) -> None:
        digest = self.shelf.digests[command.version]
        self.lanes.tell(m.LoadWeights(command.lane, command.version, digest))

    def _unload(self, command: e.UnloadVersion) -> None:
        self.lanes.tell(m.UnloadWeights(command.lane, command.version))

    def _generate(self, command: e.Generate) -> None:
        try:
            prompt = self.prompts.prompt(command.prompt_id)
        except TaskError as error:
            self._pending.append(e.PromptRejected(command.group_id, str(error)))
            return
        self.log.add_prompt(command.group_id, prompt)
        reason = misfit(prompt, self.settings.rollout)
        if reason:
            self._pending.append(e.PromptRejected(command.group_id, reason))
            return
        self._sample(command, prompt)

    def _sample(self, command: e.Generate, prompt: Prompt) -> None:
        ids, attempts = command.trajectory_ids, command.attempts
        self.lanes.tell(m.Sample(command.lane, command.version, prompt.token_ids, ids, attempts))

    def _abort(self, command: e.Abort) -> None:
        self.lanes.tell(m.AbortSamples(command.lane, command.trajectory_ids))

    def _move(self, command: e.Move) -> None:
        self.lanes.tell(m.GiveUpSamples(command.lane, command.trajectory_ids, command.keep_cache))

    def _attach(self, command: e.Attach) -> None:
        self.lanes.claim(command)
        self.lanes.tell(m.TakeUpSamples(command.lane, command.trajectory_ids, command.attempts))

    def _pause(self, command: e.Pause) -> None:
        self.lanes.tell(m.PauseSamples(command.lane))

    def _continue(self, command: e.Continue) -> None:
        self.lanes.tell(m.ContinueSamples(command.lane, command.version, command.keep_cache))

    def _score(self, command: e.Score) -> None:
        trajectory, _ = self.log.trajectory(command.trajectory_id, command.attempt)
        key = ("trajectory", command.trajectory_id, command.attempt)
        self.scoring.ask(key, self.log.prompt(command.group_id), trajectory.text)
        self.scoring.go_on(self._clock())

    def _train(self, command: e.Train) -> None:
        batch = self.log.batch(command.iteration, command.group_ids, command.attempts)
        self.backend.send(LEARNER, m.TrainOn(batch, command.projection, command.rate))
        self.prompts.forget_before(min(group.prompt.prompt_id for group in batch.groups))

    def _evaluate(self, command: e.Evaluate) -> None:
        self.held_out.begin(command.version)
        self.lanes.tell(m.AnswerHeldOut(command.lane, command.version, self.held_out.token_ids))

    def _retire(self, command: e.Retire) -> None:
        self.shelf.retire(command.version)

    def _nothing(self, command: e.Command) -> None:
        """Announcements need no deed."""

    _deeds: dict[type, Callable[[Any, Any], None]] = {
        e.StartLane: _start_lane,
        e.StartLearner: _start_learner,
        e.LoadVersion: _load,
        e.UnloadVersion: _unload,
        e.Generate: _generate,
        e.Abort: _abort,
        e.Move: _move,
        e.Attach: _attach,
        e.Pause: _pause,
        e.Continue: _continue,
        e.Score: _score,
        e.Train: _train,
        e.Evaluate: _evaluate,
        e.Retire: _retire,
        e.Quarantine: _nothing,
        e.Evict: _nothing,
        e.Steer: _nothing,
        e.Stop: _nothing,
    }
