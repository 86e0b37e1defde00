"""The live world of a task of episodes: trajectories are played by the agents' process, turn by turn, on the lanes.

It differs from `LiveWorld` in who makes a trajectory and who knows its reward, in nothing else: scheduler, ledger, run
log and learner see trajectories as always. A reward comes with its trajectory and is read back from the log when it is
asked for, so a run that is resumed asks nobody again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offbeat import events as e
from offbeat.backends import messages as m
from offbeat.backends.agent_messages import AgentsHello
from offbeat.backends.local import Name
from offbeat.live.episodes import EpisodeDesk
from offbeat.live.world import LiveWorld
from offbeat.records import Prompt


class EpisodeWorld(LiveWorld):
    """ports.World. No scorer is started."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.episodes = EpisodeDesk(
            self.backend,
            AgentsHello(str(self.directory), self._dump),
            self.lanes.tell,
            self.settings.task.reward_seconds,
            self.settings.run.max_attempts,
        )

    def start(self) -> None:
        self.episodes.start()

    # -- hearing ---------------------------------------------------------------------------------------------

    def _from_rollout(self, name: Name, message: Any) -> None:
        if isinstance(message, m.TurnSampled):
            self.episodes.sampled(message)
            return
        if isinstance(message, m.SampleFailed):
            self.episodes.abort((message.trajectory_id,))
        super()._from_rollout(name, message)

    def _from_judge(self, message: Any) -> None:
        trajectory, happened = self.episodes.heard(message, self._clock())
        if trajectory is not None:
            self.log.add_trajectory(self.prompts.with_text(trajectory))
        self._pending += happened

    def _judge_lateness(self, now: float) -> None:
        self._pending += self.episodes.out_of_time(now)
        if self.episodes.hopeless:
            self._pending.append(e.WorldFailed(self.episodes.hopeless))

    # -- doing -----------------------------------------------------------------------------------------------

    def _sample(self, command: e.Generate, prompt: Prompt) -> None:
        self.episodes.begin(command, prompt)

    def _abort_episodes(self, command: e.Abort) -> None:
        self.episodes.abort(command.trajectory_ids)
        self._abort(command)

    def _examine(self, command: e.Evaluate) -> None:
        self.episodes.examine(command, self.prompts.held_out)

    def _tell_reward(self, command: e.Score) -> None:
        trajectory, _ = self.log.trajectory(command.trajectory_id, command.attempt)
        if trajectory.reward is None:
            self._pending.append(e.ScoreFailed(command.trajectory_id, command.attempt, "its episode gave no reward"))
        else:
            self._pending.append(e.Scored(command.trajectory_id, command.attempt, trajectory.reward))

    _deeds: dict[type, Callable[[Any, Any], None]] = {
        **LiveWorld._deeds,
        e.Abort: _abort_episodes,
        e.Evaluate: _examine,
        e.Score: _tell_reward,
    }
