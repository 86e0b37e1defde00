"""Who may come in, and how much they may bring: keys, sessions, hosts, bodies.

Invariants: a wrong key learns nothing but that it is wrong, in the same time as any other; no more of a body is kept
than the limit; without a key only this machine's own names are answered to, so that no web page can speak to a server
on its reader's machine. Knows HTTP requests; no versions and no engine.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from typing import NamedTuple

from starlette.requests import ClientDisconnect, Request

from offbeat.serve.complaints import shown
from offbeat.serve.refusals import HttpRefusal

SESSION_HEADER = "x-offbeat-session"
_SESSION = re.compile(r"[A-Za-z0-9._-]{1,128}")
_HERE = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)


class Gate(NamedTuple):
    """`key` empty: nobody needs one."""

    key: str
    max_body_bytes: int
    body_seconds: float

    def session_of(self, request: Request) -> str | None:
        """Let a request in and say which session it belongs to: by its header, or by what follows a colon after its
        key. Raises HttpRefusal."""
        if not self.key and not _HERE.fullmatch(_only(request, "host")):
            raise HttpRefusal(403, "this server answers to localhost only; start it with a key to be reached by others")
        suffix = self._suffix(_only(request, "authorization"))
        named = _only(request, SESSION_HEADER)
        if named and suffix and named != suffix:
            raise HttpRefusal(400, f"{SESSION_HEADER} names session {shown(named)}, the key {shown(suffix)}; name one")
        session = named or suffix or None
        if session is not None:
            check_session(session)
        return session

    def _suffix(self, authorization: str) -> str:
        scheme, _, token = authorization.partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else ""
        if not self.key:
            return given.partition(":")[2]
        key, suffix = given[: len(self.key)], given[len(self.key) :]
        if not hmac.compare_digest(key.encode(), self.key.encode()) or not (suffix == "" or suffix[0] == ":"):
            raise HttpRefusal(401, "wrong or missing API key; send it as Authorization: Bearer KEY", "invalid_api_key")
        return suffix[1:]

    async def body_of(self, request: Request) -> bytes:
        """Raises HttpRefusal for a body that is too large, too slow or not said to be JSON."""
        if _only(request, "content-type").partition(";")[0].strip().lower() != "application/json":
            raise HttpRefusal(415, "send Content-Type: application/json")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.max_body_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.max_body_bytes:
                        raise self._too_large()
        except TimeoutError:
            raise HttpRefusal(408, f"the body did not arrive within {self.body_seconds:g} s") from None
        except ClientDisconnect:
            raise HttpRefusal(400, "the client left before its request had arrived") from None
        return bytes(body)

    def _too_large(self) -> HttpRefusal:
        return HttpRefusal(413, f"the body is larger than {self.max_body_bytes} bytes", "body_too_large")


def _only(request: Request, header: str) -> str:
    """The value of a header; "" where it is not sent. Raises HttpRefusal where it is sent with several values."""
    values = {value: None for value in request.headers.getlist(header) if value}
    if len(values) > 1:
        which = f"{len(values)} values" if header == "authorization" else " and ".join(map(shown, [*values][:2]))
        raise HttpRefusal(400, f"{header} is sent with {which}; send one")
    return next(iter(values), "")


def check_session(session: str) -> None:
    """Raises HttpRefusal for a name that no session can have."""
    if not _SESSION.fullmatch(session):
        raise HttpRefusal(400, f"session {shown(session)}: use 1 to 128 letters, digits, dots, dashes and underscores")
