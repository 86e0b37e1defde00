"""The held-out exam: answers come from a lane, marks from the scorer, one Evaluated from both.

A mark that could not be given is left out of the mean, never counted as wrong. *Progress*: while marks are given the
run is told so, about once a second, or a slow reward would look like a run that stands still.
"""

from __future__ import annotations

from offbeat import events as e
from offbeat.backends.messages import HeldOutAnswers
from offbeat.live.prompts import PromptBook
from offbeat.live.scoring import Scoring, Verdict

MARKED_SECONDS = 1.0


class HeldOutDesk:
    def __init__(self, prompts: PromptBook, scoring: Scoring) -> None:
        self._prompts = prompts
        self._scoring = scoring
        self._marks: dict[int, dict[tuple[str, int], Verdict]] = {}
        self._round: dict[int, int] = {}
        """Of the evaluations under way, by version."""
        self._rounds = 0
        self._said_at = 0.0

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        return tuple(prompt.token_ids for prompt in self._prompts.held_out)

    def begin(self, version: int) -> None:
        """A lane was asked; what an earlier, lost lane answered no longer counts."""
        self._rounds += 1
        self._marks[version] = {}
        self._round[version] = self._rounds

    def score(self, answers: HeldOutAnswers) -> None:
        """Ask for the marks of both sets of answers."""
        version = answers.version
        if version not in self._round:
            return
        for mode, responses in (("greedy", answers.greedy), ("sampled", answers.sampled)):
            for i, response in enumerate(responses):
                key = ("held-out", version, self._round[version], mode, i)
                self._scoring.ask(key, self._prompts.held_out[i], self._prompts.text(response), urgent=False)

    def judged(self, verdict: Verdict, now: float) -> e.Event | None:
        """Book a mark; the last one gives the result, one about every second the number so far."""
        if not isinstance(verdict.key, tuple) or verdict.key[0] != "held-out":
            return None
        _, version, turn, mode, i = verdict.key
        if turn != self._round.get(version):
            return None
        marks = self._marks[version]
        marks[mode, i] = verdict
        needed = 2 * len(self._prompts.held_out)
        if len(marks) < needed:
            if now - self._said_at < MARKED_SECONDS:
                return None
            self._said_at = now
            return e.Marked(version, len(marks), needed)
        del self._marks[version], self._round[version]
        shares = []
        for wanted in ("greedy", "sampled"):
            rewards = [v.reward for (mode, _), v in marks.items() if mode == wanted and v.reward is not None]
            if not rewards:
                return e.EvaluationFailed(version, next(iter(marks.values())).reason)
            shares.append(sum(reward == 1.0 for reward in rewards) / len(rewards))
        return e.Evaluated(version, len(self._prompts.held_out), *shares)
