"""A run with every kind of trouble in it: a plain simulation of a multi-version run, without the scheduler.

Groups are trained on strictly in the order of issue, and group g starts only once its batch (g // groups per batch)
is at most K iterations away: staleness is then bounded by construction, which needs no scheduler to be trusted.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from offbeat import events as e
from offbeat.records import Span, Trajectory
from offbeat.settings import Settings
from tests.report.editable_run import EditableRun, Row, small_settings, step_report

__all__ = ["EditableRun", "Row", "Simulation", "simulated_run", "small_settings"]


class _Attempt:
    def __init__(self, trajectory_id: int, version: int) -> None:
        self.trajectory_id, self.version = trajectory_id, version
        self.number, self.lane, self.tokens, self.started = -1, -1, 0, 0.0


class Simulation:
    """One token takes 10 ms, an iteration `learn` seconds. Faults happen at given times of run time.

    `kill_lane` loses lane 0 once, `expire` restarts one trajectory, `resume` stops and opens again, `reject`
    quarantines that group. All are off when None.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int = 0,
        learn: float = 0.4,
        kill_lane: float | None = 2.0,
        expire: float | None = 1.0,
        resume: float | None = 3.0,
        reject: int | None = 5,
        payloads: bool = True,
    ) -> None:
        self.made = EditableRun(settings)
        self.rng = random.Random(seed)
        self.settings, self.learn, self.reject, self.payloads = settings, learn, reject, payloads
        self.size = settings.schedule.group_size
        self.per_batch = settings.schedule.train_batch_size // self.size
        self.now, self.count, self.newest, self.issued, self.life = 0.0, 0, 0, 0, 0
        self.heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self.live: dict[int, dict[int, _Attempt]] = {}
        self.scored: dict[int, int] = {}
        self.free: list[list[int]] = [list(range(settings.rollout.slots)) for _ in range(settings.rollout.lanes)]
        self.running: dict[int, tuple[int, int]] = {}
        self.training: tuple[int, ...] = ()
        self.stopped = False
        for at, fault in ((kill_lane, self.lose_lane), (expire, self.expire_lease), (resume, self.resume)):
            if at is not None:
                self.after(at, fault, for_ever=True)

    def run(self) -> EditableRun:
        self.open(0)
        while self.heap and not self.stopped:
            at, _, life, deed = heapq.heappop(self.heap)
            if life in (-1, self.life):
                self.now = max(self.now, at)
                deed()
        return self.made

    def after(self, delay: float, deed: Callable[[], None], for_ever: bool = False) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay, self.count, -1 if for_ever else self.life, deed))

    def log(self, event: e.Event, *commands: e.Command) -> None:
        deeds = list(commands)
        if not self.stopped:
            deeds += self.go_on()
        self.made.rows.append(Row(round(self.now, 6), event, deeds))

    # -- what goes on ----------------------------------------------------------------------------------------

    def go_on(self) -> list[e.Command]:
        commands: list[e.Command] = []
        goal = self.settings.learner.iterations
        done_or_live = self.newest * self.per_batch + len(self.training) + len(self.live)
        while self.has_room() and done_or_live < goal * self.per_batch:
            if done_or_live // self.per_batch - self.newest > self.settings.schedule.max_staleness:
                break
            group, self.issued, done_or_live = self.issued, self.issued + 1, done_or_live + 1
            self.made.prompt_ids[group] = tuple(self.rng.randrange(10) for _ in range(6))
            self.live[group] = {group * self.size + i: _Attempt(0, self.newest) for i in range(self.size)}
            self.scored[group] = 0
            commands.append(self.generate(group, list(self.live[group]), max(range(len(self.free)), key=self.room)))
        first = sorted(self.live)[: self.per_batch]
        if not self.training and len(first) == self.per_batch and all(self.scored[g] == self.size for g in first):
            self.train_on(tuple(first))
            commands.append(self.train_command())
        return commands

    def room(self, lane: int) -> int:
        return len(self.free[lane])

    def has_room(self) -> bool:
        return any(len(free) >= self.size for free in self.free)

    def generate(self, group: int, ids: list[int], lane: int) -> e.Command:
        attempts = []
        for trajectory_id in ids:
            attempt = self.live[group][trajectory_id]
            attempt.trajectory_id, attempt.lane, attempt.started = trajectory_id, lane, self.now
            attempt.number += 1
            attempt.tokens = min(120, int(self.rng.paretovariate(1.1) * 6))
            attempts.append(attempt.number)
            slot = self.free[lane].pop(0)
            self.running[trajectory_id] = (lane, slot)
            self.after(attempt.tokens * 0.01, lambda t=trajectory_id, a=attempt.number: self.finish(t, a))
        version = self.live[group][ids[0]].version
        return e.Generate(lane, version, group, group, tuple(ids), tuple(attempts))

    def finish(self, trajectory_id: int, number: int) -> None:
        group = trajectory_id // self.size
        if group not in self.live or self.live[group][trajectory_id].number != number:
            return
        attempt = self.live[group][trajectory_id]
        lane, slot = self.running.pop(trajectory_id)
        self.free[lane].append(slot)
        if self.payloads:
            self.made.payloads[trajectory_id, number] = self.payload(attempt)
        finished = e.Finished(
            trajectory_id, number, lane, slot, attempt.version, attempt.tokens, "stop", attempt.started, self.now
        )
        self.log(finished, e.Score(trajectory_id, number, group, group))
        self.after(0.002, lambda: self.score(trajectory_id, number))
        if group == self.reject:
            self.reject = None
            self.quarantine(group)

    def payload(self, attempt: _Attempt) -> Trajectory:
        ids = tuple(self.rng.randrange(10) for _ in range(attempt.tokens))
        span = Span(attempt.version, ids, tuple(-self.rng.random() for _ in ids))
        return Trajectory(attempt.trajectory_id, attempt.number, (span,), "stop", "".join(map(str, ids)))

    def score(self, trajectory_id: int, number: int) -> None:
        group = trajectory_id // self.size
        if group in self.live and self.live[group][trajectory_id].number == number:
            skill = 0.85 - 0.7 * 0.97 ** self.live[group][trajectory_id].version
            reward = float(self.rng.random() < skill)
            self.made.rewards[trajectory_id, number] = reward
            self.scored[group] += 1
            self.log(e.Scored(trajectory_id, number, reward))

    def quarantine(self, group: int) -> None:
        held = [t for t in self.live[group] if t in self.running]
        aborts = [e.Abort(self.running[t][0], (t,)) for t in held]
        for trajectory_id in held:
            lane, slot = self.running.pop(trajectory_id)
            self.free[lane].append(slot)
        del self.live[group], self.scored[group]
        self.log(
            e.PromptRejected(group, "longer than the context"), *aborts, e.Quarantine(group, "longer than the context")
        )

    # -- learning --------------------------------------------------------------------------------------------

    def train_on(self, groups: tuple[int, ...]) -> None:
        self.attempts = tuple(tuple(a.number for a in self.live[g].values()) for g in groups)
        self.tokens = sum(a.tokens for g in groups for a in self.live[g].values())
        self.rewards = [self.made.rewards[t, a.number] for g in groups for t, a in self.live[g].items()]
        for group in groups:
            del self.live[group]
        self.training = groups
        self.begin_training()

    def begin_training(self) -> None:
        started = self.now
        self.after(self.learn * self.rng.uniform(0.8, 1.2), lambda: self.trained(started))

    def train_command(self) -> e.Command:
        return e.Train(self.newest, self.training, self.attempts)

    def trained(self, started: float) -> None:
        report = step_report(self.newest, self.tokens, self.rewards, self.settings, self.rng)
        self.training = ()
        self.newest += 1
        old = self.newest - self.settings.schedule.max_staleness - 1
        loads: list[e.Command] = [e.LoadVersion(lane, self.newest) for lane in range(len(self.free))]
        if old >= 0:
            loads.append(e.Retire(old))
        every = self.settings.run.evaluate_every
        last = self.newest == self.settings.learner.iterations
        if last or (every and self.newest % every == 0):
            loads.append(e.Evaluate(0, self.newest))
            self.after(0.3, lambda version=self.newest: self.evaluated(version))
        self.log(e.Trained(self.newest, f"{self.newest:064x}", report, started, self.now), *loads)

    def evaluated(self, version: int) -> None:
        skill = 0.85 - 0.7 * 0.97**version
        event = e.Evaluated(version, 64, min(1.0, skill + 0.04), skill)
        last = version == self.settings.learner.iterations
        self.stopped = last
        self.log(event, *([e.Stop("finished", f"{version} iterations done")] if last else []))

    # -- faults ----------------------------------------------------------------------------------------------

    def open(self, session: int) -> None:
        lanes = range(len(self.free))
        self.made.rows.append(
            Row(self.now, e.Opened(session), [*(e.StartLane(lane) for lane in lanes), e.StartLearner(self.newest)])
        )
        self.now += 0.2
        for lane in lanes:
            self.made.rows.append(
                Row(self.now, e.LaneReady(lane, len(self.free[lane])), [e.LoadVersion(lane, self.newest)])
            )
            progress = e.Progress(lane, (), (), 0, 0)
            self.made.rows.append(Row(self.now, progress, []))
        if session == 0:
            self.after(0.3, lambda: self.evaluated(0))
        waiting = [(g, [t for t in members if t in self.running]) for g, members in self.live.items()]
        self.running.clear()
        again = [self.generate(g, ids, max(lanes, key=self.room)) for g, ids in waiting if ids]
        if self.training:
            again.append(self.train_command())
            self.begin_training()
        scores = [
            e.Score(t, a.number, g, g)
            for g, members in self.live.items()
            for t, a in members.items()
            if t not in self.running and (t, a.number) not in self.made.rewards
        ]
        for score in scores:
            self.after(0.002, lambda s=score: self.score(s.trajectory_id, s.attempt))
        self.log(e.VersionLoaded(0, self.newest), *again, *scores)

    def resume(self) -> None:
        """Interrupted, and taken up again: what ran is dispatched again under its own version."""
        self.made.rows.append(Row(self.now, e.StopRequested("Ctrl-C"), [e.Stop("interrupted", "Ctrl-C")]))
        self.life += 1
        self.free = [list(range(self.settings.rollout.slots)) for _ in self.free]
        self.open(1)

    def lose_lane(self) -> None:
        held = [t for t, (lane, _) in self.running.items() if lane == 0]
        self.free[0] = list(range(self.settings.rollout.slots))
        again: list[e.Command] = [e.StartLane(0, "lane 0 was killed")]
        for group in sorted({t // self.size for t in held}):
            again.append(self.generate(group, [t for t in held if t // self.size == group], 0))
        self.log(e.LaneLost(0, "killed"), *again)

    def expire_lease(self) -> None:
        trajectory_id = min(self.running)
        lane, slot = self.running.pop(trajectory_id)
        self.free[lane].append(slot)
        again = self.generate(trajectory_id // self.size, [trajectory_id], lane)
        self.log(e.Tick(), e.Abort(lane, (trajectory_id,)), again)


def simulated_run(**options: object) -> EditableRun:
    settings = options.pop("settings", None) or small_settings()
    return Simulation(settings, **options).run()  # type: ignore[arg-type]
