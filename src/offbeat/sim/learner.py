"""The simulated learner and scorer: training by the cost model, a version at its end, rewards after their time.

A batch's tokens are those that its groups' responses had when they finished. Knows no lanes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from offbeat import events as e
from offbeat.eventtime.clock import VirtualClock
from offbeat.eventtime.streams import stream_seed
from offbeat.records import StepReport
from offbeat.sim.cluster import Cluster

Make = Callable[[], e.Event | None]
"""What a moment brings: an event, or nothing where it has been overtaken."""


class SimLearner:
    """`published` is when each version alive was; `version` the newest. `seconds` is all training time so far."""

    def __init__(
        self,
        cluster: Cluster,
        schedule: str,
        clock: VirtualClock,
        at: Callable[[float, Make], None],
        say: Callable[[e.Event], None],
    ) -> None:
        self.cluster = cluster
        self.clock = clock
        self.at = at
        self.say = say
        self.accelerators = cluster.learner_accelerators(schedule)
        self.version = 0
        self.published = {0: 0.0}
        self.group_tokens: dict[int, int] = {}
        self.life = 0
        self._scores = self._stream("scores")

    def _stream(self, *name: str | int) -> random.Random:
        return random.Random(stream_seed(self.cluster.run.seed, *name))

    def counts(self, group_id: int, tokens: int) -> None:
        """One more response of a group has ended."""
        self.group_tokens[group_id] = self.group_tokens.get(group_id, 0) + tokens

    def score(self, command: e.Score) -> None:
        failing = self.cluster.faults.score_failures
        event: e.Event
        if failing and self._scores.random() < failing:
            event = e.ScoreFailed(command.trajectory_id, command.attempt, "simulated failure")
        else:
            event = e.Scored(command.trajectory_id, command.attempt, 1.0)
        seconds = self.cluster.scoring.seconds
        if seconds:
            self.at(self.clock.now + seconds, lambda: event)
        else:
            self.say(event)

    def start(self, command: e.StartLearner) -> None:
        self.life += 1
        life, faults = self.life, self.cluster.faults
        self.version = command.version
        up = self.clock.now + (faults.return_seconds if command.reason else 0.0)
        self.at(up, lambda: e.LearnerReady(command.version) if self.life == life else None)
        if faults.learner_hours is not None:

            def die() -> e.Event | None:
                if self.life != life:
                    return None
                self.life += 1
                return e.LearnerLost("simulated failure")

            self.at(up + self._stream("learner", life).expovariate(1 / (3600 * faults.learner_hours)), die)

    def train(self, command: e.Train) -> None:
        life, started = self.life, self.clock.now
        trajectories = self.cluster.schedule.group_size * len(command.group_ids)
        prompt = self.cluster.lengths.prompt_tokens * trajectories
        tokens = sum(self.group_tokens[g] for g in command.group_ids)
        training, iteration = self.cluster.training, command.iteration + 1
        seconds = training.seconds(self.accelerators, tokens + prompt, iteration)
        silent = round((1 - training.signal(iteration)) * len(command.group_ids))
        ended = started + seconds

        def trained() -> e.Event | None:
            if self.life != life:
                return None
            for group in command.group_ids:
                del self.group_tokens[group]
            version = self.version = command.iteration + 1
            self.published[version] = ended
            report = step_report(command.iteration, trajectories, tokens, prompt, seconds, silent)
            return e.Trained(version, "", report, started, ended)

        self.at(ended, trained)


def step_report(
    iteration: int, trajectories: int, tokens: int, prompt_tokens: int, seconds: float, silent_groups: int
) -> StepReport:
    """What a simulated learner can say of a step: its sizes, its time, how many groups had nothing to say."""
    return StepReport(
        iteration=iteration, trajectories=trajectories, tokens=tokens, prompt_tokens=prompt_tokens,
        reward_mean=0.0, reward_std=0.0, zero_advantage_groups=silent_groups, loss=0.0, gradient_norm=0.0,
        ratio_mean=1.0, ratio_max=1.0, clip_share=0.0, policy_lag_kl=0.0, entropy=0.0, learning_rate=0.0,
        skipped_updates=0, consecutive_skips=0, train_seconds=seconds, publish_seconds=0.0,
    )  # fmt: skip
