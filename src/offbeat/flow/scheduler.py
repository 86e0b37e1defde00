"""The scheduler: (event, now) -> commands. Every decision of a run is made here, in one order.

It is a pure fold over events: the same events give the same state and the same commands, live, simulated or
replayed from a run log (the twin law). It repeats nothing it has said: a command once returned counts as under
way until an event says otherwise. After every event the ledger's conservation law is checked.
This file does not know time (it is told `now`), processes, tokens or files.
"""

from __future__ import annotations

from collections.abc import Collection

from offbeat.errors import InvariantError
from offbeat.events import (
    Abort,
    Command,
    Evaluate,
    Event,
    Evict,
    Opened,
    Quarantine,
    Retire,
    Score,
    StartLane,
    Stop,
    Train,
)
from offbeat.flow.issuing import issue
from offbeat.flow.lanes import Health, Lane
from offbeat.flow.leases import Leases
from offbeat.flow.ledger import Ledger, LiveGroup, Member, Status
from offbeat.flow.moves import let_go, orchestrate
from offbeat.flow.placement import continue_under, pause, ready_lanes, resend_waiting, turn_over_versions
from offbeat.flow.plan import Plan
from offbeat.flow.reactions import react
from offbeat.flow.schedules import SCHEDULES
from offbeat.flow.steering import Steering
from offbeat.flow.vacancies import Vacancies
from offbeat.flow.watchdog import watch
from offbeat.flow.window import Window


class Scheduler:
    """Folds events into commands. `stopped` holds the Stop once there is one; only a resume may follow it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.schedule = SCHEDULES[plan.schedule]()
        self.ledger = Ledger(plan.group_size)
        self.leases = Leases(plan.lease_seconds)
        self.steering = Steering(plan.autopilot)
        self.window = Window(plan, self.ledger, self.steering)
        self.lanes = [Lane(i) for i in range(plan.lanes)]
        self.learner = Health.DOWN
        self.learner_losses = 0
        self.goal = plan.iterations
        self.evaluations: dict[int, int | None] = {}
        self.newest_asked = -1  # evaluations are asked for in order of versions
        self.live_versions = {0}
        self.vacancies = Vacancies(self.lanes, self.schedule.refills)
        self.everybody = range(plan.lanes)
        self.stirred: Collection[int] = ()
        """Lanes of which something changed that the placing of versions, splicing or retirement depend on."""
        self.nothing_new = False
        """Did the event change nothing that decisions depend on? Then all there is to do was done after the last."""
        self.rebalance_due = False
        self.under_pressure = False
        """Does a lane say that responses wait for room among its keys and values?"""
        self.quarantined_in_a_row = 0
        self.now = self.progress_at = self.listened_at = self.rebalanced_at = 0.0
        self.stopped: Stop | None = None

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in and return what to do now, in order."""
        if self.stopped and (self.stopped.outcome == "finished" or not isinstance(event, Opened)):
            return []
        if now > self.now:
            self.now = now
        self.stirred, self.nothing_new, goal = self.everybody, False, self.goal
        commands = react(self, event)
        if not self.stopped:
            timely = watch(self)
            commands += timely
            self.nothing_new &= not timely and self.goal == goal and not self._rebalance_is_due()
        if not self.stopped and not self.nothing_new:
            commands += self._advance()
        self.ledger.check()
        if self.stopped:
            commands.append(self.stopped)
        return commands

    # -- what reactions use ----------------------------------------------------------------------------------

    def stir(self, *lanes: int) -> None:
        """Look at these lanes only, all of them if none is named; a reaction narrows what `handle` begins with."""
        self.stirred = set(lanes) if lanes else self.everybody

    def stir_nobody(self) -> None:
        self.stirred = ()

    def progressed(self) -> None:
        self.progress_at = self.now

    def stop(self, outcome: str, reason: str) -> None:
        self.stopped = Stop(outcome, reason)  # type: ignore[arg-type]

    def lose_lane(self, lane: Lane, reason: str, blamed: bool = True) -> list[Command]:
        """Restart a lane's process; what it held waits to be sampled again. A loss counts against the `blamed` only."""
        self.stir()
        held = list(lane.held.values())
        for member in held:
            let_go(self, member)
        lane.losses += blamed
        for version, where in self.evaluations.items():
            if where == lane.lane:
                self.evaluations[version] = None
        if lane.losses > self.plan.max_attempts:
            lane.clear(Health.DOWN, self.now)
            for member in held:
                self.ledger.restart(member, failed=False)
            prompts = sorted({m.group.prompt_id for m in held})[:8]
            words = f"lane {lane.lane} was lost {lane.losses} times in a row ({reason}); it held prompts {prompts}"
            self.stop("failed", words)
            return []
        lane.begin_life(self.now)
        commands: list[Command] = [StartLane(lane.lane, reason)]
        for member in held:
            if not blamed:
                self.ledger.restart(member, failed=False)
            elif member.group.group_id in self.ledger.live:
                commands += self.generation_failed(member, reason, on_lane=False)
        return commands

    def generation_failed(self, member: Member, reason: str, on_lane: bool = True) -> list[Command]:
        """An attempt failed: restart it, or quarantine its group when it failed too often."""
        if on_lane:
            let_go(self, member)
        self.stir()
        self.ledger.restart(member, failed=True)
        if member.failures < self.plan.max_attempts:
            return []
        return self.quarantine(member.group, f"failed {member.failures} times; last: {reason}")

    def quarantine(self, group: LiveGroup, reason: str) -> list[Command]:
        commands = self._abort(group)
        self.ledger.quarantine(group)
        self.stir()
        self.quarantined_in_a_row += 1
        commands.append(Quarantine(group.group_id, reason))
        if self.quarantined_in_a_row >= self.plan.max_quarantined_in_a_row:
            self.stop("failed", f"{self.quarantined_in_a_row} prompts in a row were quarantined; last: {reason}")
        return commands

    def _abort(self, group: LiveGroup) -> list[Command]:
        commands: list[Command] = []
        for member in group.members:
            if member.status is Status.RUNNING:
                let_go(self, member)
                commands.append(Abort(member.lane, (member.trajectory_id,)))
        return commands

    def ask_for_evaluation(self, version: int) -> None:
        """Once per version; `evaluations` maps those under way to their lane, None while no lane has taken it."""
        if version > self.newest_asked:
            self.newest_asked = version
            self.stir()
            self.evaluations[version] = None

    def score_command(self, member: Member) -> Score:
        group = member.group
        return Score(member.trajectory_id, member.attempt, group_id=group.group_id, prompt_id=group.prompt_id)

    @property
    def most_groups(self) -> int:
        """Groups that the run issues in all."""
        gone = self.ledger.quarantined + self.ledger.evicted
        return self.goal * self.plan.groups_per_batch + gone

    def train_command(self) -> Train:
        groups = sorted(self.ledger.training.values(), key=lambda g: g.group_id)
        ids = tuple(g.group_id for g in groups)
        attempts = tuple(tuple(m.attempt for m in g.members) for g in groups)
        return Train(self.window.newest, ids, attempts, self.steering.projection, self.steering.rate)

    # -- going on --------------------------------------------------------------------------------------------

    def _advance(self) -> list[Command]:
        """All that can be done now, in a fixed order: a batch that is taken makes room for the groups issued after it.

        Saying nothing twice makes it safe to ask after any event.
        """
        reached = self.window.newest >= self.goal and not self.window.training
        if reached:
            self.ask_for_evaluation(self.window.newest)
        commands = self._train()
        if commands:
            self.stir()
        rebalancing = self._rebalance_is_due()
        if rebalancing:
            self.stir()
        if self.stirred:
            everybody = self.stirred is self.everybody
            lanes = ready_lanes(self.lanes if everybody else [self.lanes[i] for i in sorted(self.stirred)])
            commands += self._splice(lanes)
            commands += self._rebalance() if rebalancing else []
            commands += self._turn_over(lanes)
            commands += self._evaluate()
            commands += self._retire()
        if self.ledger.waiting:
            newest = self.window.newest if self.schedule.splices else None
            commands += resend_waiting(self.ledger, self.leases, ready_lanes(self.lanes), self.now, newest)
        commands += issue(self)
        if reached and not self.evaluations:
            self.stop("finished", f"{self.window.newest} iterations done")
        return commands

    def _turn_over(self, lanes: list[Lane]) -> list[Command]:
        wanted = {m.group.version for m in self.ledger.waiting.values()} if self.schedule.splices is None else set()
        wanted |= {version for version, where in self.evaluations.items() if where is None}
        commands: list[Command] = []
        target, newest = self._target(), self.window.newest
        looked_for = target, newest, wanted
        for lane in lanes:
            if lane.settled == looked_for:
                continue
            found = turn_over_versions(lane, wanted, target, newest, self.plan.live_versions)
            commands += found
            lane.settled = None if found else looked_for
        return commands

    def _target(self) -> int:
        """The version lanes are to hold for new groups."""
        pinned = self.schedule.pins(self.window)
        return self.window.newest if pinned is None else pinned

    @property
    def may_move(self) -> bool:
        return self.schedule.moves and self.plan.migration != "off" and len(self.lanes) > 1

    def _rebalance_is_due(self) -> bool:
        """After a publish, and on a timer, which pressure brings forward."""
        patience = self.plan.rebalance_seconds / (4 if self.under_pressure else 1)
        return (self.rebalance_due or self.now - self.rebalanced_at >= patience) and self.may_move

    def _rebalance(self) -> list[Command]:
        """Divide lanes among versions anew."""
        self.rebalance_due, self.rebalanced_at, self.under_pressure = False, self.now, False
        return orchestrate(self)

    def _splice(self, lanes: list[Lane]) -> list[Command]:
        """Under schedules without C1: stand still while they ask for it, then go on under the newest version."""
        if self.schedule.splices is None:
            return []
        if self.schedule.pauses(self.window):
            return pause(lanes)
        lease = self.now + self.plan.lease_seconds
        return continue_under(lanes, self.window.newest, self.schedule.splices == "cache", self.now, lease)

    def _evaluate(self) -> list[Command]:
        commands: list[Command] = []
        for version, where in self.evaluations.items():
            lane = next((x for x in ready_lanes(self.lanes) if version in x.loaded), None)
            if where is None and lane is not None:
                self.evaluations[version] = lane.lane
                lane.examine(version)
                commands.append(Evaluate(lane.lane, version))
        return commands

    def _train(self) -> list[Command]:
        if self.learner is not Health.READY or self.window.training or self.window.newest >= self.goal:
            return []
        groups = self.schedule.batch(self.window)
        if groups is None:
            return []
        for group in groups:
            if self.schedule.bounded and not 0 <= self.window.staleness(group.version) <= self.plan.bound:
                raise InvariantError(f"C3: group {group.group_id} has staleness {self.window.staleness(group.version)}")
        self.ledger.take(groups)
        self.window.iteration += 1
        return [self.train_command(), *(self._evict() if self.plan.evicts else [])]

    def _evict(self) -> list[Command]:
        """Give up what no batch may hold any more (LongCat-Flash-Thinking, arXiv 2509.18883, Fig. 5)."""
        commands: list[Command] = []
        for group in [g for g in self.ledger.live.values() if self.window.staleness(g.version) > self.plan.bound]:
            commands += self._abort(group)
            self.ledger.evict(group)
            commands.append(Evict(group.group_id, group.prompt_id, group.version))
        return commands

    def _retire(self) -> list[Command]:
        """A version is retired once no trajectory and no evaluation needs it and no lane holds it."""
        commands: list[Command] = []
        for version in sorted(self.live_versions - {self.window.newest}):
            if not self.vacancies.holds(version) and not self.ledger.needs(version) and version not in self.evaluations:
                self.live_versions.discard(version)
                commands.append(Retire(version))
        return commands
