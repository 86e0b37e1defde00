"""The error tree; every error is named for the boundary it crossed.

    OffbeatError
    ├── SettingsError      the user's input: one line, exit code 2, nothing written
    ├── TaskError          a prompt source or its answers are unusable (a kind of bad input: exit 2)
    ├── RunDirectoryError  a run directory cannot be opened, resumed or read (exit 2)
    ├── EngineError        the rollout engine refused or failed; never turned into a reward of 0
    │   ├── NonFiniteLogits    logits that are not numbers; these requests were dropped
    │   └── OutOfRoom      a conversation has no room left for another turn
    ├── WeightsError       published weights are missing, damaged or not the announced ones
    ├── InvariantError     a law of the ledger or of a constraint (C1, C2, C3) was about to break
    └── RunFailed          a run, or one of those compared, ended without reaching its goal (exit 1)

This file knows no room; every room may import it.
"""

from __future__ import annotations


class OffbeatError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line returns."""

    exit_code = 1


class SettingsError(OffbeatError):
    """The user's input is wrong. The message names the key, the value and the remedy."""

    exit_code = 2


class TaskError(OffbeatError):
    """A task's prompts, answers or reward cannot be used as they are."""

    exit_code = 2


class RunDirectoryError(OffbeatError):
    """A run directory is missing, in use, not one of ours, or from another version."""

    exit_code = 2


class EngineError(OffbeatError):
    """The rollout engine could not do what was asked."""


class NonFiniteLogits(EngineError):
    """These requests met logits that are not finite and were dropped; every other request goes on."""

    def __init__(self, request_ids: tuple[int, ...], versions: tuple[int, ...]) -> None:
        self.request_ids, self.versions = request_ids, versions
        super().__init__(
            f"logits are not finite under version {', '.join(map(str, versions))}:"
            f" requests {', '.join(map(str, request_ids))} are dropped"
        )


class OutOfRoom(EngineError):
    """A conversation and another turn do not fit the run's limits. An episode may end with what it has."""


class WeightsError(OffbeatError):
    """Weights on disk or in an engine are not the weights their manifest announces."""


class InvariantError(OffbeatError):
    """A named law would be broken by the next step. This is a defect of offbeat, not of the user."""


class RunFailed(OffbeatError):
    """A run stopped before its goal; the message names the culprit."""
