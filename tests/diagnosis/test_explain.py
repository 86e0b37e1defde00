"""Each kind of trouble, made by the real scheduler in a fake world, is found, and a healthy run yields nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from offbeat import events as e
from offbeat.diagnosis.case import Place
from offbeat.diagnosis.explain import explain, words
from tests.diagnosis.cases import USED, Scorer, case, drive, found, run_case, settings, world


def test_a_healthy_run_yields_nothing_at_any_moment_of_its_life() -> None:
    rows = drive(world(), settings())
    assert isinstance(rows[-1][2][-1], e.Stop)
    for end in (1, 5, 40, 200, 1000, len(rows) // 2, len(rows) - 1):
        assert found(case(rows[:end])) == {}, end
    assert found(case(rows, place=Place())) == {}
    explained = explain(case(rows, place=Place()))
    assert explained.state == "finished"
    assert list(words(explained))[1:] == ["Nothing is wrong with it."]
    assert explained.to_json()["healthy"] is True


def test_a_run_with_every_schedule_is_judged_by_what_it_does() -> None:
    """`sync` makes the learner wait for every batch: said so, with the schedule that does not."""
    sync = found(run_case(world(learn=5.0), schedule__name="sync"))
    assert set(sync) == {"learner-starved"}
    assert "multi-version" in sync["learner-starved"].remedy


# -- how it ended ----------------------------------------------------------------------------------------------


def test_a_run_that_ended_without_a_word_is_told_from_one_that_lives() -> None:
    rows = drive(world(), settings(), most=900)
    assert found(case(rows)) == {}
    crashed = found(case(rows, place=Place(last_words="MemoryError")))
    assert set(crashed) == {"crashed"}
    assert "offbeat train --resume out/run" in crashed["crashed"].remedy
    assert "MemoryError" in crashed["crashed"].evidence[-1].words


@pytest.mark.parametrize(
    ("event", "name", "severity"),
    [(e.StopRequested("stopped by SIGINT"), "interrupted", "note"), (e.WorldFailed("no such lane"), "failed", "error")],
)
def test_an_end_gives_its_reason_and_how_to_go_on(event: e.Event, name: str, severity: str) -> None:
    rows = drive(world(), settings(), most=900)
    outcome = "interrupted" if name == "interrupted" else "failed"
    rows.append((event, rows[-1][1], (e.Stop(outcome, event.reason),)))  # type: ignore[union-attr, arg-type]
    ended = found(case(rows, place=Place()))
    assert set(ended) == {name}
    assert ended[name].severity == severity
    assert event.reason in ended[name].sentence  # type: ignore[union-attr]
    assert "offbeat train --resume out/run" in ended[name].remedy


def test_a_full_disk_is_named_by_what_failed_and_by_what_is_left() -> None:
    rows = drive(world(), settings(), most=900)
    lost = [*rows, (e.LearnerLost("No space left on device"), rows[-1][1], (e.Stop("failed", "lost"),))]
    assert {"disk-full", "failed", "learner-lost"} == set(found(case(lost, place=Place())))
    silent = found(case(rows, place=Place(free_bytes=4096, checkpoint_bytes=1 << 20)))
    assert silent["disk-full"].severity == "error"
    soon = found(case(rows, place=USED._replace(free_bytes=10 << 20, checkpoint_bytes=8 << 20)))
    assert {name: finding.severity for name, finding in soon.items()} == {"disk-full": "warning"}


def test_a_damaged_log_and_damaged_checkpoints_are_told() -> None:
    rows = drive(world(), settings(), most=900)
    damaged = found(case(rows, place=Place(log_damage="database disk image is malformed", checkpoint_damage="gone")))
    assert set(damaged) == {"crashed", "log-damaged", "checkpoint-damaged"}
    rows.append((e.Rebuilt(3, "x", "model.safetensors is damaged"), rows[-1][1], ()))
    assert set(found(case(rows))) == {"checkpoint-rebuilt"}


# -- processes -------------------------------------------------------------------------------------------------


def test_lanes_that_are_lost_are_counted_with_when_and_why() -> None:
    lost = found(run_case(world(faults={"lane": 0.006})))
    assert lost["lane-lost"].severity == "warning"
    assert "ended by the test" in lost["lane-lost"].evidence[0].words
    assert lost["lane-lost"].evidence[0].seq is not None


def test_a_lane_that_does_not_come_up_or_says_nothing_is_named() -> None:
    rows = drive(world(), settings(), most=900)
    now = rows[-1][1]
    dead = found(
        case([*rows, (e.LaneLost(1, "killed"), now, (e.StartLane(1),)), (e.Progress(0, (), (), 0, 0), now + 301, ())])
    )
    assert set(dead) - {"learner-silent"} == {"lane-dead"}
    assert "lane 1 to come up" in dead["lane-dead"].evidence[0].words
    holding = e.Progress(0, (40, 41), (3, 3), 2, 1000)
    silent = found(case([*rows, (holding, now, ()), (e.Progress(1, (), (), 0, 0), now + 200, ())]))
    assert set(silent) - {"learner-silent"} == {"lane-silent"}
    assert "Lane 0 is silent" in silent["lane-silent"].sentence


def test_a_learner_that_is_lost_or_takes_too_long_is_named() -> None:
    lost = found(run_case(world(faults={"learner": 0.006})))
    assert lost["learner-lost"].severity == "warning"
    rows = drive(world(), settings())
    at = next(
        i for i, (_, _, deeds) in enumerate(rows) if any(isinstance(c, e.Train) and c.iteration > 9 for c in deeds)
    )
    waiting = [*rows[: at + 1], (e.Tick(), rows[at][1] + 100, ())]
    assert set(found(case(waiting))) == {"learner-silent"}
    assert found(case([*rows[: at + 1], (e.Tick(), rows[at][1] + 40, ())])) == {}


def test_a_main_process_that_stands_still_is_told_now_and_afterwards() -> None:
    rows = drive(world(), settings(), most=900)
    assert set(found(case(rows, place=USED._replace(silent_seconds=20.0)))) == {"main-silent"}
    rows.append((e.Suspended(500.0), rows[-1][1] + 500, ()))
    assert "500" in found(case(rows))["stood-still"].evidence[0].words


# -- prompts and rewards ---------------------------------------------------------------------------------------


def test_poison_prompts_are_named_with_their_reason() -> None:
    poison = found(run_case(Scorer(0.01, frozenset({5, 17}))))
    assert "ran out of time" in poison["poison-prompt"].sentence
    assert {seen.words.split(":")[0] for seen in poison["poison-prompt"].evidence} == {"prompt 5", "prompt 17"}
    assert poison["slow-reward"].sentence.endswith("calls time out.")


def test_a_prompt_that_kills_lanes_is_the_one_that_each_dead_lane_held() -> None:
    rows = drive(world(), settings(), most=900)
    now = rows[-1][1]
    for turn, innocent in enumerate((4, 8, 12)):
        held = (80, 81, innocent)
        rows.append((e.Progress(0, held, (1, 1, 1), 3, 1000 + turn), now + turn, ()))
        rows.append((e.LaneLost(0, "signal SIGSEGV"), now + turn, (e.StartLane(0),)))
        rows.append((e.LaneReady(0, 10), now + turn, ()))
    rows = [(event, at, tuple(c for c in deeds if not isinstance(c, e.Stop))) for event, at, deeds in rows]
    prompts = {c.group_id: c.prompt_id for _, _, deeds in rows for c in deeds if isinstance(c, e.Generate)}
    deadly = found(case(rows))["deadly-prompt"]
    assert deadly.sentence.startswith(f"Prompt {prompts[20]} ")


def test_a_slow_reward_that_learning_waits_for_is_named() -> None:
    slow = found(run_case(Scorer(2.5)))
    assert "learning waits for it" in slow["slow-reward"].sentence
    assert set(slow) == {"slow-reward"}


def test_groups_that_teach_nothing_are_too_hard_or_too_easy() -> None:
    hard = found(run_case(bend=lambda iteration: {"zero_advantage_groups": 4, "reward_mean": 0.01}))
    assert "too hard" in hard["zero-advantage"].sentence
    easy = found(run_case(bend=lambda iteration: {"zero_advantage_groups": 3, "reward_mean": 0.97}))
    assert "too easy" in easy["zero-advantage"].sentence
    assert easy["zero-advantage"].evidence[0].iteration == 59


def test_responses_that_run_away_or_are_cut_off_are_named() -> None:
    def rows_of(length: Any) -> list[Any]:
        rows = []
        for event, now, deeds in drive(world(), settings()):
            if isinstance(event, e.Finished):
                tokens, cut = length(event.trajectory_id)
                event = e.Finished(event.trajectory_id, event.attempt, event.lane, 0, event.version, tokens,
                                   "length" if cut else "stop", event.started, event.ended)  # fmt: skip
            rows.append((event, now, deeds))
        return rows

    away = found(case(rows_of(lambda i: (30 + i // 4, i % 3 == 0 and i > 500)), place=Place()))
    assert set(away) == {"length-runaway"}
    assert found(case(rows_of(lambda i: (30 + i // 100, i % 9 == 0)), place=Place())) == {}
    assert set(found(case(rows_of(lambda i: (40, i > 300 or i % 2 == 0)), place=Place()))) == {"cut-off"}


# -- learning --------------------------------------------------------------------------------------------------


def test_a_collapse_is_told_by_the_declared_criterion() -> None:
    gone = found(run_case(bend=lambda i: {"reward_mean": 0.6 if i < 30 else 0.1, "zero_advantage_groups": 0}))
    assert set(gone) == {"collapse"}
    assert "max_staleness" in gone["collapse"].remedy
    assert 30 <= gone["collapse"].evidence[1].iteration < 45
    dip = found(run_case(bend=lambda i: {"reward_mean": 0.1 if 30 <= i < 45 else 0.6, "zero_advantage_groups": 0}))
    assert dip == {}


def with_instruments(**changes: Any) -> Any:
    import msgspec

    from tests.report.editable_run import instruments

    return msgspec.structs.replace(instruments(5, random.Random(0)), **changes)


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ({"policy_lag_kl": 0.4}, "nats a token apart"),
        ({"instruments": with_instruments(effective_sample_size=0.1)}, "effective sample size is 0.10"),
        ({"gradient_norm": 400.0}, "gradient's norm jumped to 400"),
        ({"entropy": 9.0}, "entropy rose to 9"),
    ],
)
def test_what_comes_before_a_collapse_is_told_with_the_number(late: dict[str, Any], words: str) -> None:
    signs = found(run_case(bend=lambda iteration: late if iteration >= 45 else {}))
    assert set(signs) == {"collapse-signature"}
    assert words in signs["collapse-signature"].sentence
    assert "learner.align.mode = cap" in signs["collapse-signature"].remedy


def test_gradients_that_point_the_same_way_are_told_and_not_where_control_is_on() -> None:
    from offbeat.records import StepAlignment

    aligned = run_case(bend=lambda i: {"alignment": StepAlignment(cosine=0.8)}, learner__align={"mode": "observe"})
    assert "cosine 0.80" in found(aligned)["collapse-signature"].sentence
    calm = run_case(bend=lambda i: {"alignment": StepAlignment(cosine=0.1)}, learner__align={"mode": "observe"})
    assert found(calm) == {}


def test_updates_that_were_not_finite_are_counted() -> None:
    once = found(run_case(bend=lambda i: {"skipped_updates": int(i == 9), "consecutive_skips": int(i == 9)}))
    assert {name: finding.severity for name, finding in once.items()} == {"not-finite": "note"}
    often = found(
        run_case(bend=lambda i: {"skipped_updates": int(i > 50), "consecutive_skips": max(0, min(4, i - 50))})
    )
    assert often["not-finite"].severity == "warning"
    assert often["not-finite"].evidence[-1].iteration == 59


# -- who waits for whom ----------------------------------------------------------------------------------------


def test_a_learner_that_waits_for_responses_is_starved() -> None:
    starved = found(run_case(world(learn=2.0)))
    assert set(starved) == {"learner-starved"}
    assert "rollout.lanes" in starved["learner-starved"].remedy


def test_lanes_that_wait_for_the_learner_are_starved() -> None:
    assert set(found(run_case(world(learn=300.0, length=lambda rng: rng.uniform(5, 10))))) == {"lanes-starved"}


def test_a_bound_that_holds_full_batches_back_is_named() -> None:
    def tail(rng: random.Random) -> float:
        return 900.0 if rng.random() < 0.02 else rng.uniform(5, 10)

    binding = found(run_case(world(learn=10.0, length=tail), schedule__max_staleness=2, rollout__slots=10))
    assert "bound-binds" in binding
    assert "K = 2" in binding["bound-binds"].sentence
    assert "max_staleness" in binding["bound-binds"].remedy


def test_lanes_short_of_room_are_named() -> None:
    tight = found(run_case(world(cache_tokens=120, length=lambda rng: rng.uniform(40, 80))))
    assert "rollout.cache_tokens" in tight["cache-pressure"].remedy


def test_giving_up_what_is_too_old_is_counted() -> None:
    def tail(rng: random.Random) -> float:
        return 900.0 if rng.random() < 0.1 else rng.uniform(5, 10)

    gone = found(run_case(world(learn=10.0, length=tail), schedule__at_bound="evict", schedule__max_staleness=1))
    assert "schedule.at_bound = drain" in gone["evictions"].remedy
