"""Combinations of settings that cannot work, each in one line: key, value, remedy. Knows no file or command line."""

from __future__ import annotations

from offbeat.settings_sections import SPLICING, LearnerSettings, ModelSettings, RolloutSettings, ScheduleSettings
from offbeat.task_settings import EPISODIC, CountingTask, RunningSumTask, TaskSettings


def impossible(
    schedule: ScheduleSettings,
    rollout: RolloutSettings,
    learner: LearnerSettings,
    task: TaskSettings,
    model: ModelSettings,
) -> list[str]:
    """What is wrong, most basic first; empty where all goes together."""
    problems: list[str] = []
    tbs, group, k = schedule.train_batch_size, schedule.group_size, schedule.staleness_bound
    if group < 2:
        problems.append(f"schedule.group_size = {group}: group-relative advantage needs at least 2; set 2 or more")
    if tbs % group:
        problems.append(
            f"schedule.train_batch_size = {tbs} is not a multiple of schedule.group_size = {group};"
            f" set {max(1, round(tbs / group)) * group}"
        )
    rbs = schedule.rollout_batch_size
    if rbs is not None and rbs > (k + 1) * tbs:
        problems.append(
            f"schedule.rollout_batch_size = {rbs} is more than (K + 1) x train_batch_size = {(k + 1) * tbs};"
            " lower it or raise schedule.max_staleness"
        )
    if rbs is not None and rbs < tbs:
        problems.append(
            f"schedule.rollout_batch_size = {rbs} is less than schedule.train_batch_size = {tbs}: no batch could"
            f" ever fill; set at least {tbs}"
        )
    if schedule.name in SPLICING and schedule.max_versions == 1:
        problems.append(
            f"schedule.max_versions = 1: {schedule.name} loads the next version beside the one that is sampling; set 2"
        )
    problems += _without_room(rollout)
    problems += _not_of_this_schedule(schedule)
    if rollout.engine == "vllm":
        problems += _not_of_vllm(schedule, rollout, learner)
    if schedule.name == "repack" and rollout.lanes == 1:
        problems.append("rollout.lanes = 1: repack packs what is left on one lane onto others; set 2 or more")
    if task.name in ("textarena", "verifiers") and not model.path:
        problems.append(
            "model.path is empty: a preset is warm-started on gold answers, which games and environments lack; give one"
        )
    if getattr(task, "system", "") and not model.path:
        problems.append("task.system: presets have no chat template to say it in; give a model.path or leave it out")
    problems += _not_for_episodes(schedule, rollout, task)
    smallest, largest = _length_range(task)
    if smallest > largest:
        problems.append(f"task.min = {smallest} is more than task.max = {largest}; lower the one or raise the other")
    return problems + _wrong_for_the_learner(learner, tbs // group)


def _without_room(rollout: RolloutSettings) -> list[str]:
    problems: list[str] = []
    if rollout.max_new_tokens >= rollout.context:
        problems.append(
            f"rollout.max_new_tokens = {rollout.max_new_tokens} leaves no room for a prompt in rollout.context ="
            f" {rollout.context}; raise rollout.context or lower rollout.max_new_tokens"
        )
    if rollout.cache_tokens is not None and rollout.cache_tokens < rollout.context:
        problems.append(
            f"rollout.cache_tokens = {rollout.cache_tokens} is less than rollout.context = {rollout.context}: the"
            " longest response would never fit; raise it"
        )
    if rollout.lanes % rollout.lanes_per_process:
        problems.append(
            f"rollout.lanes_per_process = {rollout.lanes_per_process} does not divide rollout.lanes = {rollout.lanes};"
            " processes would differ; change either"
        )
    return problems


def _wrong_for_the_learner(learner: LearnerSettings, groups: int) -> list[str]:
    problems: list[str] = []
    if learner.updates_per_iteration > groups:
        problems.append(
            f"learner.updates_per_iteration = {learner.updates_per_iteration} is more than the {groups} groups of a"
            f" batch; set at most {groups}"
        )
    if learner.autopilot and learner.align.mode != "off":
        problems.append(
            f"learner.align.mode = {learner.align.mode}: learner.autopilot = true measures alignment and sets the"
            " projection itself; remove the one or the other"
        )
    if learner.align.c_low >= learner.align.c_high:
        problems.append(
            f"learner.align.c_low = {learner.align.c_low:g} is not below learner.align.c_high ="
            f" {learner.align.c_high:g}; lower the one or raise the other"
        )
    if learner.sharding != "none" and learner.processes == 1:
        problems.append(
            f"learner.sharding = {learner.sharding}: one process holds everything anyway; set learner.processes to 2 or"
            " more, or remove it"
        )
    if learner.sharding != "none" and learner.lora is not None:
        problems.append(
            f"learner.sharding = {learner.sharding}: an adapter of [learner.lora] is not sharded; remove the one or the"
            " other"
        )
    return problems + _impossible_objective(learner)


def _impossible_objective(learner: LearnerSettings) -> list[str]:
    """What of the learner's settings contradicts its objective or its baseline."""
    objective, problems = learner.objective, []
    if objective.FIXED and learner.aggregation not in (None, objective.AGGREGATION):
        problems.append(
            f"learner.aggregation = {learner.aggregation}: {objective.name} is defined by the {objective.AGGREGATION}"
            " one; remove it or set learner.objective = grpo"
        )
    if objective.FIXED and learner.normalise_advantage not in (None, objective.NORMALISES):
        problems.append(
            f"learner.normalise_advantage = {str(learner.normalise_advantage).lower()}: {objective.name} is defined"
            " without; remove it or set learner.objective = grpo"
        )
    if learner.baseline in ("opo", "none") and learner.normalise_advantage:
        problems.append(
            f"learner.normalise_advantage = true: baseline {learner.baseline} is not the mean that a deviation is taken"
            " from; remove it"
        )
    return problems


def _not_of_this_schedule(schedule: ScheduleSettings) -> list[str]:
    """Keys that ask of a schedule what it cannot do."""
    problems: list[str] = []
    if schedule.at_bound == "evict" and schedule.name != "multi-version":
        problems.append(
            f"schedule.at_bound = evict: {schedule.name} gives nothing up; remove it or set schedule.name ="
            " multi-version"
        )
    return problems


def _not_of_vllm(schedule: ScheduleSettings, rollout: RolloutSettings, learner: LearnerSettings) -> list[str]:
    """What vLLM cannot do that the local engine can."""
    problems: list[str] = []
    if schedule.name == "in-flight":
        problems.append(
            "schedule.name = in-flight: vLLM cannot go on under new weights over keys and values of the old ones; set"
            " schedule.name = partial or rollout.engine = local"
        )
    elif schedule.live_versions > 1 and learner.lora is None:
        holds = f"a vLLM engine holds one version of full weights, {schedule.name} here asks for"
        remedy = "add [learner.lora], whose versions live side by side" + (
            "" if schedule.name in SPLICING else ", or set schedule.max_versions = 1"
        )
        problems.append(f"rollout.engine = vllm: {holds} {schedule.live_versions}; {remedy}")
    if rollout.lanes > 1 and schedule.migration == "cache":
        problems.append(
            "schedule.migration = cache: vLLM's keys and values stay where they are; set schedule.migration = prefill"
            " (or off)"
        )
    return problems


def _length_range(task: TaskSettings) -> tuple[int, int]:
    match task:
        case RunningSumTask():
            return task.min_terms, task.max_terms
        case CountingTask():
            return task.min_count, task.max_count
        case _:
            return 0, 0


def _not_for_episodes(schedule: ScheduleSettings, rollout: RolloutSettings, task: TaskSettings) -> list[str]:
    """An episode stays where it began, under the version it began with."""
    if task.name not in EPISODIC:
        return []
    if schedule.name not in ("multi-version", "sync", "one-step-off"):
        return [
            f"schedule.name = {schedule.name!r}: an episode of {task.name} keeps version and lane over all its turns;"
            " use multi-version, one-step-off or sync"
        ]
    if rollout.lanes > 1 and schedule.migration != "off":
        return [
            f"schedule.migration = {schedule.migration!r}: episodes of {task.name} do not move between lanes; set it to"
            " off, or rollout.lanes to 1"
        ]
    return []
