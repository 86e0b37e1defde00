"""Every way a request is refused, as a status and OpenAI's error object: one table.

Knows the errors of the rooms below; no engine and no socket.
"""

from __future__ import annotations

from starlette.responses import JSONResponse

from offbeat.errors import OffbeatError
from offbeat.flow.pins import PinError
from offbeat.serve.answers import error_body
from offbeat.serve.bodies import BadRequest
from offbeat.serve.hub import Busy


class HttpRefusal(OffbeatError):
    """A request is refused before anybody has looked at what it asks for."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        self.status, self.code = status, code
        super().__init__(message)


PINS = {
    "not-ready": (503, None),
    "unknown-version": (404, "model_not_found"),
    "no-room": (503, "no_room"),
    "other-version": (409, "session_pinned"),
    "session-over": (410, "session_over"),
    "too-many-sessions": (429, "too_many_sessions"),
}
KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         405: "invalid_request_error", 408: "timeout_error", 409: "conflict_error", 410: "invalid_request_error",
         413: "invalid_request_error", 415: "invalid_request_error", 429: "rate_limit_error"}  # fmt: skip


def status_of(error: OffbeatError) -> tuple[int, str | None, str | None]:
    """(status, param, code)."""
    match error:
        case BadRequest():
            return 400, error.param, error.code
        case HttpRefusal():
            return error.status, None, error.code
        case PinError():
            status, code = PINS[error.refusal]
            return status, "model" if status in (404, 409) else None, code
        case Busy():
            return 429, None, "too_many_calls"
    return 500, None, None


def refusal(error: OffbeatError) -> JSONResponse:
    """The answer to a request that is refused. A client is told whether it makes sense to try again."""
    status, param, code = status_of(error)
    return refused(status, str(error), param, code)


def refused(status: int, message: str, param: str | None = None, code: str | None = None) -> JSONResponse:
    headers = {"x-should-retry": "true" if status in (408, 429, 503) else "false"}
    if status in (429, 503):
        headers["retry-after"] = "1"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(message, KINDS.get(status, "server_error"), param, code), status, headers)
