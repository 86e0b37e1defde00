"""A sample of `runs/fault_schedules.py`: lanes and learners die and return at random; C1, C2 and C3 are kept."""

from __future__ import annotations

import pytest

from offbeat import events as e
from offbeat.flow.schedules import SCHEDULES
from offbeat.sim.simulate import simulate
from offbeat.sim.trials import trial
from offbeat.testing.witness import Witness


def witnessed(seed: int) -> tuple[Witness, str]:
    cluster, name = trial(seed)
    schedule, plan = SCHEDULES[name], cluster.plan(name)
    witness = Witness(plan.group_size, plan.bound if schedule.bounded else None, schedule.splices is not None)
    simulate(cluster, name, observers=[witness.saw])
    return witness, name


@pytest.mark.parametrize("first", range(0, 10_000, 1250))
def test_no_breach_whatever_dies(first: int) -> None:
    losses, met = 0, set()
    for seed in range(first, first + 25):
        witness, name = witnessed(seed)
        assert not witness.closing(), f"seed {seed}, {name}"
        losses += witness.losses
        met.add(name)
    assert losses > 20, "nothing died: this would hold for any scheduler"
    assert len(met) > 3


def test_the_same_seed_is_the_same_run() -> None:
    def tape(seed: int) -> list[object]:
        cluster, name = trial(seed)
        rows: list[object] = []
        simulate(cluster, name, observers=[lambda event, now, commands: rows.append((event, now, tuple(commands)))])
        return rows

    assert tape(3) == tape(3)
    assert tape(3) != tape(4)


def test_a_witness_can_object() -> None:
    """The negative control: each law, broken by hand."""
    witness = Witness(1, 1, splices=False)
    witness.saw(e.VersionLoaded(0, 0), 0.0, [e.Generate(0, 0, 0, 0, (0,), (0,)), e.Generate(0, 3, 1, 1, (1,), (0,))])
    witness.saw(e.Finished(0, 0, 0, 0, 2, 5, "stop", 0.0, 1.0, 2), 1.0, [e.Train(4, (0,), ((0,),))])
    witness.saw(e.Trained(5, "", None, 1.0, 2.0), 2.0, [e.Evict(0, 0, 0)])  # type: ignore[arg-type]
    words = " ".join(witness.closing())
    for law in ("lacks", "in 2", "before it had ended", "left the run 2 times", "never left the run"):
        assert law in words
    witness._scored.add((0, 0))
    witness.saw(e.Trained(5, "", None, 1.0, 2.0), 2.0, [])  # type: ignore[arg-type]
    assert "C3" in " ".join(witness.closing())
