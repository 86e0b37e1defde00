"""What a diagnosis consists of: findings, each with a sentence, the numbers it rests on, and what to change.

Knows no run and no machine. `error`: it cannot go on as it is; `warning`: it goes on and should not be left so;
`note`: worth knowing, nothing is in danger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning", "note"]
ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
MARKS = {"error": "ERROR  ", "warning": "WARNING", "note": "NOTE   "}


class Evidence(msgspec.Struct, frozen=True):
    """One thing seen, in words; where there is one with its number, the iteration and the place in the run log."""

    words: str
    value: float | None = None
    iteration: int | None = None
    seq: int | None = None

    @property
    def line(self) -> str:
        """The words and where to look."""
        places = [f"iteration {self.iteration}"] * (self.iteration is not None)
        places += [f"event {self.seq}"] * (self.seq is not None)
        return self.words + (f" ({', '.join(places)})" if places else "")


class Finding(msgspec.Struct, frozen=True):
    """`name` is stable and may be matched by scripts; `remedy` names the setting or the command."""

    name: str
    severity: Severity
    sentence: str
    remedy: str
    evidence: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors, warnings, notes; within each as they came."""
    return tuple(sorted(findings, key=lambda finding: ORDER[finding.severity]))


def findings_in_words(findings: Iterable[Finding]) -> Iterator[str]:
    """Each finding in its own lines: what, what was seen, what to do."""
    for finding in findings:
        yield f"{MARKS[finding.severity]} {finding.sentence}  [{finding.name}]"
        for seen in finding.evidence:
            yield f"          - {seen.line}"
        yield f"          -> {finding.remedy}"
