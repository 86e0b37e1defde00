"""What a server tells of itself: numbers for Prometheus, and a record of every call, one JSON object a line.

The record is evidence: `versions` are those that sampled a call's tokens, as the engine says, whatever the call was
meant to get. A disk that refuses ends the record, not the server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from offbeat.errors import SettingsError
from offbeat.serve.calls import CallEnded, LaneLost, Notice, VersionChanged
from offbeat.serve.hub import Hub

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """`saw` is an observer of the hub; `watch` adds what can be read off the hub when it is asked."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        into = self.registry
        self._answers = Counter(
            "offbeat_http_answers", "HTTP answers by path and status.", ["path", "status"], registry=into
        )
        self._calls = Counter("offbeat_calls", "Responses that ended, by outcome.", ["outcome"], registry=into)
        self._prompt = Counter("offbeat_prompt_tokens", "Tokens of the prompts of ended calls.", registry=into)
        self._tokens = Counter("offbeat_sampled_tokens", "Tokens sampled for ended calls.", registry=into)
        self._seconds = Histogram(
            "offbeat_call_seconds", "From begin to end of a call.", buckets=SECONDS, registry=into
        )
        self._first = Histogram(
            "offbeat_first_token_seconds", "From begin to first token.", buckets=SECONDS, registry=into
        )
        self._versions = Counter("offbeat_versions", "Versions held, gone or refused, so far.", ["what"], registry=into)
        self._lost = Counter("offbeat_lanes_lost", "Engines that were lost.", registry=into)

    def watch(self, hub: Hub) -> None:
        pins = hub.pins
        for name, help_text, value in (
            ("calls_under_way", "Responses running or waiting.", lambda: len(hub.calls)),
            ("sessions", "Sessions that are pinned to a version.", lambda: len(pins.sessions)),
            ("sessions_expired", "Pins that ended by their lease, so far.", lambda: pins.expired),
            ("versions_held", "Versions that calls can be answered by.", lambda: len(pins.held)),
            (
                "newest_version",
                "The version that new sessions get.",
                lambda: -1 if pins.newest is None else pins.newest,
            ),
            ("published_version", "The newest version that can be had.", lambda: max(pins.published, default=-1)),
        ):
            gauge = Gauge(f"offbeat_{name}", help_text, registry=self.registry)
            gauge.set_function(value)

    def saw(self, notice: Notice) -> None:
        match notice:
            case CallEnded():
                self._calls.labels(notice.outcome).inc()
                self._prompt.inc(notice.prompt_tokens)
                self._tokens.inc(notice.tokens)
                self._seconds.observe(notice.seconds)
                if notice.first_token_seconds is not None:
                    self._first.observe(notice.first_token_seconds)
            case VersionChanged():
                self._versions.labels(notice.what).inc()
            case LaneLost():
                self._lost.inc()

    def answered(self, path: str, status: int) -> None:
        self._answers.labels(path, str(status)).inc()

    def page(self) -> tuple[bytes, str]:
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class CallRecord:
    """Writes every notice to a file as it comes; times are seconds since the epoch."""

    def __init__(self, file: Path, complain: Callable[[str], None]) -> None:
        self._file = file
        self._complain = complain
        try:
            self._stream: TextIO | None = file.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise SettingsError(f"--record {file}: cannot be written ({error.strerror}); choose another file") from None

    def saw(self, notice: Notice) -> None:
        if self._stream is None:
            return
        row = {"event": type(notice).__name__, "at": round(time.time(), 6), **notice._asdict()}
        try:
            self._stream.write(json.dumps(row) + "\n")
        except OSError as error:
            self._complain(f"{self._file}: cannot be written ({error.strerror}); the server goes on without it")
            self._stream = None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
