"""What goes in and what came of it: prompts from the draw to the reward, and what the learner says it trained on.

A prompt that is drawn must be issued: a scheduler that leaves out what it takes to be long, or hard, shows as a gap.
Knows the story and the stored prompts; not how prompts are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from offbeat import events as e
from offbeat.report.laws import Breach
from offbeat.report.read import Run
from offbeat.report.story import Consumption, Story


def prompts_kept(run: Run, story: Story) -> Iterator[Breach]:
    """One prompt a group in every Generate, every Score and the store; prompts issued are 0, 1, 2... without a gap."""
    of = {group_id: dispatch.prompt_id for group_id, dispatch in story.first_dispatch.items()}
    for record in run.records:
        for command in record.commands:
            if isinstance(command, e.Generate | e.Score) and command.prompt_id != of.get(command.group_id):
                yield Breach(
                    "prompts",
                    f"group {command.group_id}: {type(command).__name__} at seq {record.seq} names prompt"
                    f" {command.prompt_id}, issued was {of.get(command.group_id, 'none')}",
                )
    for group_id in sorted(story.consumed_groups & of.keys()):
        stored = run.prompts.get(group_id)
        if stored is None or stored.prompt_id != of[group_id]:
            held = "none" if stored is None else f"prompt {stored.prompt_id}"
            yield Breach("prompts", f"group {group_id}: of prompt {of[group_id]} and consumed, stored is {held}")
    issued = set(of.values())
    left_out = sorted(set(range(max(issued, default=-1) + 1)) - issued)
    for prompt_id in left_out:
        yield Breach("prompts", f"prompt {prompt_id}: passed over, though later ones were issued", story.group_size)


def reports_agree(run: Run, story: Story) -> Iterator[Breach]:
    """The learner trained on the rewards and the tokens that the log holds: its own sums say so."""
    for batch in story.consumptions:
        yield from _report_agrees(batch, story)


def _report_agrees(batch: Consumption, story: Story) -> Iterator[Breach]:
    what = f"iteration {batch.iteration} (Trained at seq {batch.trained_seq})"
    members = [t for group_id in batch.train.group_ids for t in story.members(group_id)]
    scored = [s[0][1] for t in members if (s := story.scores.get(t)) and math.isfinite(s[0][1])]
    tokens = [story.accepted[t].event.tokens for t in members if t in story.accepted]
    report = batch.trained.report
    mean = math.fsum(scored) / max(1, len(scored))
    if len(scored) == len(members) and not math.isclose(report.reward_mean, mean, abs_tol=1e-6):
        text = f"{what}: the learner reports mean reward {report.reward_mean}"
        yield Breach("rewards", f"{text}, the log's is {mean}")
    if len(tokens) == len(members) and report.tokens != sum(tokens):
        yield Breach(
            "payloads", f"{what}: the learner reports {report.tokens} response tokens, the log has {sum(tokens)}"
        )
