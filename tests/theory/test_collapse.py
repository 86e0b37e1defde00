"""The declared collapse criterion, rule by rule."""

from __future__ import annotations

from offbeat.theory.collapse import collapse, is_settled, onset

RISING = [0.2 + 0.005 * t for t in range(100)]


def test_a_run_that_learns_has_not_collapsed() -> None:
    found = collapse(RISING, [1.0] * 100, [1.0] * 100)
    assert (found.step, found.by_gradient, found.by_entropy) == (None, None, None)


def test_reward_rule_names_the_first_step_below_half_of_the_running_maximum() -> None:
    rewards = RISING + [0.0] * 60
    step = collapse(rewards).step
    assert step is not None
    smooth = [sum(rewards[max(0, i - 9) : i + 1]) / min(i + 1, 10) for i in range(len(rewards))]
    assert smooth[step] < 0.5 * max(smooth[: step + 1]) <= smooth[step - 1]


def test_a_dip_that_recovers_within_fifty_steps_is_no_collapse() -> None:
    assert collapse([*RISING, *[0.0] * 30, *[0.6] * 40]).step is None
    assert collapse([*RISING, *[0.0] * 80, *[0.6] * 40]).step is not None


def test_a_run_that_ends_in_a_dip_has_collapsed() -> None:
    assert collapse([*RISING, *[0.0] * 12]).step is not None


def test_gradient_and_entropy_are_recorded_and_do_not_decide() -> None:
    found = collapse(RISING, [1.0] * 50 + [21.0] * 50, [1.0] * 70 + [0.05] * 30)
    assert (found.step, found.by_gradient, found.by_entropy) == (None, 50, 70)


def test_a_collapse_is_settled_once_its_patience_is_over_and_then_stays_what_it_was() -> None:
    rewards = [*RISING, *[0.0] * 80, *[0.9] * 60]
    at = collapse(rewards).step
    assert at is not None
    settled = [n for n in range(1, len(rewards) + 1) if is_settled(rewards[:n])]
    assert settled == list(range(at + 51, len(rewards) + 1))
    assert {collapse(rewards[:n]).step for n in settled} == {at}
    assert not is_settled([*RISING, *[0.0] * 30, *[0.6] * 80])


def test_the_onset_is_where_rewards_fell_and_not_where_their_mean_did() -> None:
    rewards = RISING + [0.0] * 60
    step = collapse(rewards).step
    assert step is not None
    assert step > 100
    assert onset(rewards, step) == 100
    assert onset([0.3] * 20 + [0.0] * 80, collapse([0.3] * 20 + [0.0] * 80).step or 0) == 20
