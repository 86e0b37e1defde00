"""What a server may be told: sizes, limits, leases. Knows no HTTP and no engine, and loads nothing large."""

from __future__ import annotations

from pydantic import Field, ValidationError

from offbeat.errors import EngineError, SettingsError
from offbeat.rollout.config import read_shape
from offbeat.serve.complaints import shown
from offbeat.serve.sources import Source
from offbeat.task_settings import Positive, Seconds, Section

DEFAULT_CONTEXT = 2048
OPTIONS = {"max_new_tokens": "max-tokens", "max_body_bytes": "max-body", "lease_seconds": "lease"}
"""Of the command line, where their names are not those of the fields."""


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


def default_options(source: Source, engine: str = "local", **given: int | float | None) -> ServeOptions:
    """Options with the source's context where none is given. Raises SettingsError where they do not fit its model."""
    try:
        positions = read_shape(source.policy).max_positions
    except EngineError as error:
        raise SettingsError(str(error)) from None
    chosen = {name: value for name, value in given.items() if value is not None}
    context = int(chosen.setdefault("context", source.context or min(positions, DEFAULT_CONTEXT)))
    chosen.setdefault("max_new_tokens", context)
    if engine == "vllm":
        if chosen.get("lanes", 1) > 1:
            raise SettingsError(f"--lanes {chosen['lanes']}: a process has one vLLM engine; leave it out")
        if not source.lora_rank and chosen.setdefault("max_versions", 1) > 1:
            raise SettingsError(
                f"--max-versions {chosen['max_versions']}: vLLM holds one version that is all weights, several that are"
                " adapters; leave it out, or use --engine local"
            )
    if "keep_versions" not in chosen:
        chosen["keep_versions"] = min(2, int(chosen.get("max_versions", 2)))
    if context > positions:
        raise SettingsError(f"--context {context}: the model takes {positions} tokens; give at most those")
    if chosen["keep_versions"] > chosen.get("max_versions", ServeOptions.model_fields["max_versions"].default):
        raise SettingsError(f"--keep-versions {chosen['keep_versions']}: more than --max-versions; lower it")
    try:
        return ServeOptions.model_validate(chosen)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        option = OPTIONS.get(name, name.replace("_", "-"))
        raise SettingsError(f"--{option} {shown(first['input'])}: {first['msg']}") from None
