"""An audited policy as a policy: its decisions come from a process of its own, with limits on time, memory and words.

*A misbehaving policy ends its own session, never the audit*: what it did becomes `Misbehaved`, with kind, detail and
when. Prices outside the box are clipped and counted. It judges nothing.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Literal

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.demand import Array
from offbeat.market.market import Decision
from offbeat.market.scenario import Scenario

Kind = Literal["raised", "hung", "exited", "not a number", "not an answer"]
LONGEST_ANSWER = 8_000_000


class Misbehaved(Exception):
    """The audited policy could not be asked any more. `kind`, `detail`, `time` (units of market time)."""

    def __init__(self, kind: Kind, detail: str, time: float) -> None:
        super().__init__(f"{kind}: {detail}")
        words = " ".join(detail.split())[:300].encode("utf-8", "replace").decode()  # no lone surrogates in a page
        self.kind, self.detail, self.time = kind, words, time


@dataclass(frozen=True)
class Limits:
    """`start_seconds` for its import, `answer_seconds` for each batch of decisions, `cpu_seconds` and `memory_bytes`
    in all.
    """

    start_seconds: float = 60.0
    answer_seconds: float = 10.0
    cpu_seconds: int = 600
    memory_bytes: int = 8 * 2**30


class Candidate:
    """`target` (module:name) behind a pipe; use as a context manager. One candidate plays any number of firms of a
    market.

    Raises SettingsError where `target` cannot be loaded: bad input, not misbehaviour.
    """

    def __init__(self, target: str, scenario: Scenario, limits: Limits | None = None) -> None:
        if not all(part.isidentifier() for part in target.replace(":", ".").split(".")) or target.count(":") != 1:
            raise SettingsError(f"policy: {target!r} is not module:name; name a function or a class")
        self.target, self._scenario, self._limits = target, scenario, limits or Limits()
        self.outside = 0
        self.asked = 0
        command = [sys.executable, "-m", "offbeat.market.audit.host", target]
        command += [str(self._limits.memory_bytes), str(self._limits.cpu_seconds)]
        kept = {
            name: os.environ[name]
            for name in ("PATH", "PYTHONPATH", "HOME", "LANG", "VIRTUAL_ENV")
            if name in os.environ
        }
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            said = self._hear(self._limits.start_seconds, 0.0)
        except Misbehaved as error:
            self.close()
            raise SettingsError(f"policy: {target} could not be started ({error}); try importing it") from None
        if "unusable" in said:
            self.close()
            raise SettingsError(f"policy: {target} could not be loaded ({' '.join(said['unusable'].split())[:300]})")

    def __enter__(self) -> Candidate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session of its own: whatever it started ends, too
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def __call__(self, decision: Decision) -> Array:
        request = [self._observation(decision, row) for row in range(len(decision))]
        at = float(decision.now.max())
        said = self._ask(request, at)
        if "raised" in said:
            raise Misbehaved("raised", str(said["raised"]), at)
        prices = said.get("prices")
        if not isinstance(prices, list) or len(prices) != len(request):
            raise Misbehaved("not an answer", str(said)[:100], at)
        found = np.array(prices, dtype=np.float64)
        if not np.isfinite(found).all():
            raise Misbehaved("not a number", f"price {found[~np.isfinite(found)][0]}", at)
        low, high = self._scenario.box
        self.asked += len(found)
        self.outside += int(((found < low) | (found > high)).sum())
        return np.clip(found, low, high)

    def _observation(self, decision: Decision, row: int) -> dict[str, Any]:
        firm = int(decision.firm[row])
        seen, age = decision.seen[row], decision.age[row]
        return {
            "key": f"{int(decision.market[row])}/{firm}",
            "first": bool(decision.first[row]),
            "time": float(decision.now[row]),
            "elapsed": float(decision.elapsed[row]),
            "profit": None if decision.first[row] else float(decision.profit[row]),
            "own_price": float(seen[0]),
            "rival_prices": seen[1:].tolist(),
            "rival_ages": age[1:].tolist(),
            "cost": float(self._scenario.industry.cost[firm]),
            "lowest": self._scenario.box[0],
            "highest": self._scenario.box[1],
        }

    def _ask(self, request: list[dict[str, Any]], at: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Misbehaved("exited", f"exit status {self._process.wait()}", at) from None
        return self._hear(self._limits.answer_seconds, at)

    def _hear(self, seconds: float, at: float) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        said = _line(pipe, seconds)
        if said is None:
            raise Misbehaved("hung", f"no answer within {seconds:g} s", at)
        if not said:
            raise Misbehaved("exited", f"exit status {self._process.wait()}", at)
        try:
            answer = json.loads(said)
        except ValueError:
            raise Misbehaved("not an answer", repr(said[:100]), at) from None
        if not isinstance(answer, dict):
            raise Misbehaved("not an answer", repr(answer)[:100], at)
        return answer


def _line(pipe: IO[bytes], seconds: float) -> bytes | None:
    """The next line; None where it does not come in time, empty where the pipe has ended."""
    until, parts, size = time.monotonic() + seconds, [], 0
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while size < LONGEST_ANSWER:
            if not selector.select(max(0.0, until - time.monotonic())):
                return None
            part = os.read(pipe.fileno(), 1 << 16)
            if not part:
                return b""
            parts.append(part)
            size += len(part)
            if part.endswith(b"\n"):
                return b"".join(parts)
    return b"too long an answer\n"
