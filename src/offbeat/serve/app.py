"""The HTTP surface: OpenAI's completions, chat completions and models; sessions, health and metrics beside them.

Invariants: every request gets a status and a JSON body that say what is wrong; whatever way a client leaves, its calls
are ended at once and their slots freed. Statuses are `refusals`, limits `gate`, meaning `desk`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from offbeat.errors import OffbeatError
from offbeat.serve.answers import DONE, Head, Logprobs, choice, error_body, event, model_card, usage
from offbeat.serve.bodies import ChatAsk, CompletionAsk, read_ask
from offbeat.serve.calls import Call
from offbeat.serve.complaints import cut, shown
from offbeat.serve.desk import Asked, Desk
from offbeat.serve.gate import SESSION_HEADER, Gate, check_session
from offbeat.serve.refusals import refusal, refused
from offbeat.serve.waiting import all_of, merged, unless_gone

CLIENT_GONE = 499
"""Said to nobody: the client has left."""


class Endpoint:
    """The handlers. `metrics` gives the page for Prometheus; `count` is told the status of every answer."""

    def __init__(
        self, desk: Desk, gate: Gate, metrics: Callable[[], tuple[bytes, str]], count: Callable[[str, int], None]
    ) -> None:
        self.desk = desk
        self.gate = gate
        self._metrics = metrics
        self._count = count
        self._created = int(time.time())

    def app(self) -> Starlette:
        routes = [
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self._kept(self.metrics), methods=["GET"]),
            Route("/v1/models", self._kept(self.models), methods=["GET"]),
            Route("/v1/models/{model:path}", self._kept(self.model), methods=["GET"]),
            Route("/v1/completions", self._kept(self.completions), methods=["POST"]),
            Route("/v1/chat/completions", self._kept(self.chat), methods=["POST"]),
            Route("/v1/sessions/{session}", self._kept(self.session), methods=["GET", "DELETE"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._lost, Exception: self._broken})

    def _kept(self, handle: Callable[[Request, str | None], Awaitable[Response]]) -> Callable[..., Any]:
        """A handler behind the gate; what it refuses becomes an answer."""

        async def handler(request: Request) -> Response:
            try:
                response = await handle(request, self.gate.session_of(request))
            except OffbeatError as error:
                response = refusal(error)
            self._count(request.scope["route"].path, response.status_code)
            return response

        return handler

    @staticmethod
    async def _lost(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: f"{cut(request.url.path)} is not here", 405: f"{cut(request.method)} is not allowed here"}
        return refused(error.status_code, words.get(error.status_code, error.detail))

    @staticmethod
    async def _broken(request: Request, error: Exception) -> Response:
        """A defect of this server: its traceback is printed, the client is told no more than that."""
        return refused(500, "the server failed on this request; its own output says how")

    # -- what is there -----------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """200 as long as calls are answered; `published` above `newest` says that a version waits for room."""
        hub = self.desk.hub
        well = not hub.dead and hub.pins.newest is not None
        return JSONResponse(
            {
                "status": "ok" if well else hub.dead or "no version yet",
                "newest": hub.pins.newest,
                "published": max(hub.pins.published, default=None),
            },
            200 if well else 503,
        )

    async def metrics(self, request: Request, session: str | None) -> Response:
        page, kind = self._metrics()
        return Response(page, media_type=kind)

    async def models(self, request: Request, session: str | None) -> Response:
        return JSONResponse({"object": "list", "data": [self._card(one) for one in self.desk.models()]})

    async def model(self, request: Request, session: str | None) -> Response:
        name = request.path_params["model"]
        for one in self.desk.models():
            if one["name"] == name:
                return JSONResponse(self._card(one))
        return refused(404, f"model {shown(name)} is not there", "model", "model_not_found")

    def _card(self, one: dict[str, Any]) -> dict[str, Any]:
        return model_card(
            one["name"], one["version"], self._created, one["held"], one["newest"], self.desk.hub.source.name
        )

    async def session(self, request: Request, mine: str | None) -> Response:
        """What a session is pinned to; DELETE ends it, so that its version may go before its lease does."""
        session = request.path_params["session"]
        check_session(session)
        pin = self.desk.hub.pins.sessions.get(session)
        if pin is None:
            return refused(404, f"session {session!r} is not open", None, "session_not_found")
        body = {"id": session, "object": "session", "version": pin.version, "calls": pin.calls}
        if request.method == "DELETE":
            self.desk.hub.pins.close(session)
            self.desk.conversations.forget(session)
            body["deleted"] = True
        return JSONResponse(body)

    # -- answers -----------------------------------------------------------------------------------------------

    async def completions(self, request: Request, session: str | None) -> Response:
        return await self._answer(request, session, CompletionAsk)

    async def chat(self, request: Request, session: str | None) -> Response:
        return await self._answer(request, session, ChatAsk)

    async def _answer(
        self, request: Request, session: str | None, kind: type[CompletionAsk] | type[ChatAsk]
    ) -> Response:
        ask = read_ask(kind, await self.gate.body_of(request))
        asked = await self.desk.asked(ask, session)
        with ExitStack() as ends:
            calls = ends.enter_context(self.desk.calls(asked))
            chat = kind is ChatAsk
            version = calls[0].version
            answer_id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
            head = Head(answer_id, self.desk.model_of(version), version, session, chat)
            headers = {"x-request-id": answer_id, "x-offbeat-version": str(version)}
            if session is not None:
                headers[SESSION_HEADER] = session
            if ask.stream:
                return Streamed(self._events(asked, head, calls), headers, ends.pop_all())
            body = await unless_gone(request.receive, self._whole(asked, head, calls))
            if body is None:
                return Response(status_code=CLIENT_GONE)
            return JSONResponse(body, headers=headers)

    async def _whole(self, asked: Asked, head: Head, calls: list[Call]) -> dict[str, Any]:
        made = await all_of([self._choice(asked, head, i, call) for i, call in enumerate(calls)])
        body = head.around([one for one, _ in made], streamed=False)
        if asked.ask.return_token_ids:
            body["prompt_token_ids"] = [list(order.prompt_ids) for order in asked.orders[:: asked.ask.n]]
        return body | {"usage": usage(asked.prompt_tokens, sum(tokens for _, tokens in made))}

    async def _choice(self, asked: Asked, head: Head, index: int, call: Call) -> tuple[dict[str, Any], int]:
        deltas = [delta async for delta in self.desk.answer(asked, index, call)]
        token_ids = [token for delta in deltas for token in delta.token_ids]
        logprobs = None
        if asked.ask.wants_logprobs:
            behaviour_logprobs = [logprob for delta in deltas for logprob in delta.behaviour_logprobs]
            logprobs = Logprobs(self.desk.tokenizer, head.chat).of(token_ids, behaviour_logprobs)
        text = "".join(delta.text for delta in deltas)
        made = choice(head, index, text, logprobs, deltas[-1].finish_reason, None, deltas[-1].calls)
        if asked.ask.return_token_ids:
            made["token_ids"] = token_ids
        return made, len(token_ids)

    async def _events(self, asked: Asked, head: Head, calls: list[Call]) -> AsyncGenerator[bytes]:
        """Chunks of all choices as they come, then the usage where it is wanted."""
        logprobs = [Logprobs(self.desk.tokenizer, head.chat) for _ in calls]
        begun, tokens = set[int](), 0
        try:
            async with merged([self.desk.answer(asked, i, call) for i, call in enumerate(calls)]) as deltas:
                async for delta in deltas:
                    tokens += len(delta.token_ids)
                    told = None
                    if asked.ask.wants_logprobs:
                        told = logprobs[delta.choice].of(delta.token_ids, delta.behaviour_logprobs)
                    elif not delta.text and delta.finish_reason is None and not asked.ask.return_token_ids:
                        continue
                    first = delta.choice not in begun
                    made = choice(head, delta.choice, delta.text, told, delta.finish_reason, first, delta.calls)
                    if asked.ask.return_token_ids:
                        made["token_ids"] = list(delta.token_ids)
                    begun.add(delta.choice)
                    yield event(head.around([made], streamed=True))
        except OffbeatError as error:
            yield event(error_body(str(error), "server_error"))
            return
        if asked.ask.wants_usage:
            yield event(head.around([], streamed=True) | {"usage": usage(asked.prompt_tokens, tokens)})
        yield DONE


class Streamed(Response):
    """Server-sent events; `ends` is closed when they are over or nobody takes them any more, also unsent."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], headers: dict[str, str], ends: ExitStack) -> None:
        super().__init__(headers=headers | {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._ends = ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._ends:
            await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events):
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
