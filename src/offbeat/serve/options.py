"""What a server may be told: sizes, limits, leases. Knows no HTTP and no engine."""

from __future__ import annotations

from pydantic import Field

from offbeat.task_settings import Positive, Seconds, Section


class ServeOptions(Section):
    """All limits have a value: a server without limits is a server that somebody else switches off."""

    lanes: int = Field(1, ge=1, le=64)
    """Engines; each holds every version that is served."""
    slots: int = Field(32, ge=1, le=4096)
    """Responses that an engine decodes at once; others wait."""
    threads: int = Field(1, ge=1, le=256)
    """Compute threads of an engine."""
    context: Positive
    """Longest prompt + response in tokens."""
    max_new_tokens: Positive
    """Longest response that a call may ask for, in tokens."""
    max_calls: Positive = 256
    """Responses under way or waiting; a call that would make more is refused."""
    max_body_bytes: Positive = 1 << 20
    body_seconds: Seconds = 30.0
    """How long a client may take to send its request."""
    max_sessions: Positive = 16384
    lease_seconds: Seconds = 600.0
    """A session without a call for so long loses its version."""
    max_versions: Positive = 8
    """Versions that an engine holds at once."""
    keep_versions: Positive = 2
    """Newest versions that are held although no session needs them."""
    poll_seconds: Seconds = 1.0
    """How often new versions are looked for."""
