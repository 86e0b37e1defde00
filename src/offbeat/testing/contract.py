"""Conformance suites, one per port: a part is right when it passes the suite of its port.

    from offbeat.testing.contract import GeneratorCase, check_generator
    check_generator(GeneratorCase(make=lambda: MyEngine(...), weights=(first, second), damaged=broken, ...))

Every law is also there by name, for one test each: `GENERATOR_LAWS`. Knows ports only, no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from offbeat.testing import generator_laws as laws
from offbeat.testing import migration_laws
from offbeat.testing.generator_laws import GeneratorCase

__all__ = ["GENERATOR_LAWS", "GeneratorCase", "check_generator"]

GENERATOR_LAWS: Mapping[str, Callable[[GeneratorCase], None]] = {
    law.__name__: law
    for law in (
        laws.each_answered_once,
        laws.never_more_running_than_slots,
        laws.logprobs_are_those_of_the_version,
        laws.seeds_fix_the_tokens,
        laws.greedy_takes_the_likeliest,
        laws.cuts_are_normalised,
        laws.what_is_sampled_stays,
        laws.aborted_are_forgotten,
        laws.versions_come_and_go,
        laws.misfits_are_refused,
        migration_laws.detached_go_on_elsewhere,
        migration_laws.what_cannot_be_attached_is_refused,
    )
}


def check_generator(case: GeneratorCase) -> None:
    """Hold a generator to every law of its port. Raises AssertionError naming the law and what broke it."""
    for law in GENERATOR_LAWS.values():
        law(case)
