"""What a server tells of itself while it runs: numbers for Prometheus."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
