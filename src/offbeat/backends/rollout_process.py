"""A rollout process: one engine, the lanes it hosts, and the held-out prompts it answers meanwhile.

C1 is kept by the engine (a request is decoded by its own version or not at all); the publish invariant here:
no version is served before checksum and canary passed. Evaluation has slots of its own, so it takes none from
rollouts. A failure of the engine is reported as a failure, never as a response.
"""

from __future__ import annotations

import time
from pathlib import Path

from offbeat.backends import messages as m
from offbeat.backends.heap import Trimming
from offbeat.backends.held_out_requests import ExamTurns, HeldOutRequests
from offbeat.backends.hosted_lane import HostedLane
from offbeat.backends.weights import CANARY_TOLERANCE, COARSE_TOLERANCE, check_canary, read_manifest, weights_file
from offbeat.backends.worker import Link, set_threads, work
from offbeat.errors import NonFiniteLogits
from offbeat.ports import Completion, Generator
from offbeat.settings import Settings, settings_from

BEAT_SECONDS = 0.5


class RolloutProcess:
    """`holders[v]` are the lanes that have version v loaded: the engine holds it while there is one."""

    def __init__(self, link: Link, hello: m.RolloutHello, settings: Settings, engine: Generator) -> None:
        self.link = link
        self.engine = engine
        self.run_directory = Path(hello.run_directory)
        self.origin = hello.origin
        self.settings = settings
        self.spare = evaluation_slots(settings)
        coarse = settings.rollout.engine == "vllm" and settings.rollout.vllm_dtype == "bfloat16"
        self.tolerance = COARSE_TOLERANCE if coarse else CANARY_TOLERANCE
        self.lanes: dict[int, HostedLane] = {}
        self.holders: dict[int, set[int]] = {}
        self.held_out: list[HeldOutRequests] = []
        self.next_held_out_id = -1
        self.held_out_decoded: dict[int, int] = {}
        self.exam_turns = ExamTurns(settings.run.seed, self.spare)
        self.beat_at = 0.0
        self.trimming = Trimming()

    def now(self) -> float:
        return time.monotonic() - self.origin

    def serve(self) -> None:
        while True:
            busy = bool(self.held_out) or self.exam_turns.busy or any(lane.busy for lane in self.lanes.values())
            for message in self.link.poll(0 if busy else BEAT_SECONDS):
                self.take(message)
            for lane in self.lanes.values():
                lane.feed()
            self.feed_held_out()
            self.exam_turns.feed(self.engine, self.now())
            if busy:
                self.decode()
            self.beat()

    # -- messages --------------------------------------------------------------------------------------------

    def take(self, message: m.ToRollout) -> None:
        """Messages for a lane that is not open (any more) are for an earlier life of it: nobody waits for an answer."""
        assert not isinstance(message, m.RolloutHello)
        if isinstance(message, m.OpenLane):
            self.lanes[message.lane] = HostedLane(
                message.lane, self.run_directory, self.settings, self.engine, self.link.send, self.now
            )
            self.link.send(m.LaneUp(message.lane, self.settings.rollout.slots))
        elif message.lane in self.lanes:
            self.deliver(self.lanes[message.lane], message)

    def deliver(self, lane: HostedLane, message: m.ToRollout) -> None:
        match message:
            case m.Sample():
                lane.sample(message)
            case m.TakeTurn(trajectory_id=trajectory_id):
                if trajectory_id < 0:
                    self.exam_turns.waiting.append(message)
                else:
                    lane.take_turn(message)
            case m.AbortSamples():
                lane.abort(message.trajectory_ids)
            case m.GiveUpSamples():
                lane.give_up(message)
            case m.TakeUpSamples():
                lane.take_up(message)
            case m.PauseSamples():
                lane.pause()
            case m.ContinueSamples():
                lane.go_on(message)
            case m.LoadWeights():
                self.load(message)
            case m.UnloadWeights():
                holders = self.holders[message.version]
                holders.discard(lane.lane)
                if not holders:
                    del self.holders[message.version]
                    self.engine.unload(message.version)
            case m.AnswerHeldOut():
                held_out = HeldOutRequests(
                    message, self.next_held_out_id, self.settings.run.seed, self.settings.rollout.max_new_tokens
                )
                self.next_held_out_id -= len(held_out.answers)
                self.held_out.append(held_out)

    def lane_of(self, trajectory_id: int) -> HostedLane:
        return next(lane for lane in self.lanes.values() if trajectory_id in lane.attempts)

    def load(self, message: m.LoadWeights) -> None:
        version = message.version
        manifest = read_manifest(self.run_directory, version, message.digest)
        if version not in self.holders:
            self.engine.load(version, weights_file(self.run_directory, version))
            check_canary(manifest, lambda p, r: self.engine.score(version, p, r), self.tolerance)
            self.decode()  # what an engine ended while it scored is said before anything else is heard
        self.holders.setdefault(version, set()).add(message.lane)
        self.link.send(m.WeightsLoaded(message.lane, version, manifest.digest))
        self.trimming.turn()

    # -- decoding --------------------------------------------------------------------------------------------

    def feed_held_out(self) -> None:
        """Keep the spare slots filled with the oldest evaluation's requests."""
        if not self.held_out:
            return
        held_out = self.held_out[0]
        while held_out.waiting and held_out.running < self.spare:
            self.engine.submit(held_out.waiting.pop())
            held_out.running += 1

    def decode(self) -> None:
        try:
            completions = self.engine.step()
        except NonFiniteLogits as error:
            self.failed(error)
            return
        now = self.now()
        for completion in completions:
            if completion.request_id in self.exam_turns.running:
                turn = self.exam_turns.answered(completion, now)
                self.held_out_decoded[turn.lane] = self.held_out_decoded.get(turn.lane, 0) + len(turn.span.token_ids)
                self.link.send(turn)
            elif completion.request_id < 0:
                self.answered(completion)
            else:
                self.lane_of(completion.request_id).finished(completion, now)

    def failed(self, error: NonFiniteLogits) -> None:
        """The engine dropped these requests; a held-out answer among them is a failure of the process."""
        if any(request_id < 0 for request_id in error.request_ids):
            raise error
        for trajectory_id in error.request_ids:
            self.lane_of(trajectory_id).failed(trajectory_id, str(error))

    def answered(self, done: Completion) -> None:
        held_out = self.held_out[0]
        held_out.answered(done)
        lane = held_out.lane
        self.held_out_decoded[lane] = self.held_out_decoded.get(lane, 0) + len(done.token_ids)
        result = held_out.result()
        if result:
            self.link.send(result)
            self.held_out.pop(0)

    def beat(self) -> None:
        now = self.now()
        if now - self.beat_at < BEAT_SECONDS:
            return
        self.beat_at = now
        tokens, parked = self.engine.decoded(), self.engine.parked()
        for lane in self.lanes.values():
            examined = self.held_out_decoded.get(lane.lane, 0)
            if self.held_out and self.held_out[0].lane == lane.lane:
                examined += sum(count for request_id, count in tokens.items() if request_id < 0)
            self.link.send(lane.beat(tokens, parked, examined))


def evaluation_slots(settings: Settings) -> int:
    """Engine rows beyond the rollout slots, used by held-out evaluation only."""
    return max(1, settings.rollout.slots // 4)


def adapters_of(settings: Settings) -> tuple[int, int]:
    """(Adapters an engine holds at once, their rank); (0, 0) where versions are full weights. Lanes that share an
    engine hold the same versions but for those on their way out."""
    lora = settings.learner.lora
    return (0, 0) if lora is None else (settings.schedule.live_versions + 1, lora.rank)


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, m.RolloutHello)
    settings = settings_from(hello.settings)
    set_threads(settings.run.threads)
    RolloutProcess(link, hello, settings, _engine(Path(hello.run_directory) / "policy", settings)).serve()


def _engine(policy: Path, settings: Settings) -> Generator:
    """The engine asked for; what the other one needs is not imported."""
    rollout = settings.rollout
    slots = rollout.slots * min(rollout.lanes_per_process, rollout.lanes) + evaluation_slots(settings)
    budget = None if rollout.cache_tokens is None else rollout.cache_tokens * rollout.lanes_per_process
    if rollout.engine == "vllm":
        from offbeat.backends.vllm.engine import VllmEngine

        return VllmEngine(policy, slots, rollout.context, budget, rollout.vllm_dtype, adapters_of(settings))
    from offbeat.rollout.engine import Engine
    from offbeat.rollout.warm_up import warm_up

    warm_up()  # before anybody waits for a sign of life
    return Engine(policy, slots, rollout.context, kv_tokens=budget)


if __name__ == "__main__":
    work(main, m.ToRollout)
