"""Figures of what was learnt: reward and held-out exact match, over versions and over run time."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.report.bins import moving_mean
from offbeat.report.read import Run
from offbeat.report.story import Story
from offbeat.report.style import BLUE, GREEN, ORANGE, Clock, Figure, faint, line, spec

Marks = list[tuple[float, str]]


def session_marks(story: Story, clock: Clock) -> Marks:
    """Where later sessions begin, on a time axis."""
    return [(now / clock.seconds, "resumed") for _, now, opened in story.sessions if opened.session > 0]


def session_steps(story: Story) -> Marks:
    """Where later sessions begin, on an axis of versions."""
    published = [seq for seq, _, _ in story.publishes]
    return [
        (sum(p < seq for p in published) + 0.5, "resumed") for seq, _, opened in story.sessions if opened.session > 0
    ]


def learning_figures(run: Run, story: Story) -> list[Figure]:
    """Reward and held-out exact match, each over versions and over run time."""
    clock = Clock.for_run(run.wall_seconds)
    times = session_marks(story, clock)
    steps = session_steps(story)
    versions = [trained.version for _, _, trained in story.publishes]
    when = [now / clock.seconds for _, now, _ in story.publishes]
    return [
        _reward("reward-steps", "Reward over versions", story, versions, "version published", steps),
        _reward("reward-time", "Reward over run time", story, when, clock.axis, times),
        _held_out("held-out-steps", "Held-out exact match over versions", story, None, steps),
        _held_out("held-out-time", "Held-out exact match over run time", story, clock, times),
    ]


def _reward(name: str, title: str, story: Story, x: list[Any], axis: str, marks: Marks) -> Figure:
    caption = (
        "Mean reward of each batch (dots) and its mean over the last 10 batches (line); rising means the policy"
        " earns more on fresh prompts."
    )
    if not x:
        return Figure(name, title, caption, None)
    rewards = np.array([trained.report.reward_mean for _, _, trained in story.publishes])
    traces = [
        faint(x, rewards, "batch", BLUE, "batch mean reward %{y:.3f}"),
        line(x, moving_mean(rewards, 10), "mean of 10", BLUE, "mean of the last 10 batches %{y:.3f}"),
    ]
    return Figure(name, title, caption, spec(traces, axis, "mean reward", marks))


def _held_out(name: str, title: str, story: Story, clock: Clock | None, marks: Marks) -> Figure:
    caption = (
        "Share of prompts that training never draws, answered exactly: greedy decoding and sampling at the rollout"
        " temperature."
    )
    results = sorted(story.evaluations, key=lambda row: row[1].version)
    if not results:
        return Figure(name, title, caption, None)
    x = [now / clock.seconds if clock else evaluated.version for now, evaluated in results]
    greedy = [evaluated.exact_match_greedy for _, evaluated in results]
    sampled = [evaluated.exact_match_sampled for _, evaluated in results]
    prompts = results[-1][1].prompts
    style = {"mode": "lines+markers", "marker": {"size": 7}}
    traces = [
        line(x, greedy, "greedy", GREEN, f"greedy %{{y:.1%}} of {prompts} prompts", **style),
        line(x, sampled, "sampled", ORANGE, f"sampled %{{y:.1%}} of {prompts} prompts", **style),
    ]
    axis = clock.axis if clock else "version"
    top = min(1.02, max(0.1, *greedy, *sampled) * 1.15)
    return Figure(
        name,
        title,
        caption,
        spec(traces, axis, "exact match", marks, yaxis_tickformat=".0%", yaxis_range=[0, top]),
    )
