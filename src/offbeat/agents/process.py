"""The process of the episodes: runs them as coroutines, all in one event loop, and serves them their policy.

Foreign code may raise, hang or lie here without touching the run: what it raises is a failed attempt, and when it
keeps the loop from listening the main process ends this one. Turns come from and go to the main process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import uvicorn

from offbeat.agents.episodes import EpisodeHub, session_of
from offbeat.backends.agent_messages import (
    AbortEpisodes,
    AgentsBeat,
    AgentsHello,
    AgentsUp,
    EpisodeRaised,
    RunEpisode,
    ToAgents,
    TurnIs,
)
from offbeat.backends.worker import Link, work
from offbeat.errors import EngineError, OutOfRoom
from offbeat.ports import EpisodeTask
from offbeat.serve.app import Endpoint
from offbeat.serve.desk import Desk
from offbeat.serve.gate import Gate
from offbeat.serve.hub import Hub
from offbeat.settings import settings_from
from offbeat.tasks import import_reward, make_task
from offbeat.tasks.verdicts import checked, one_line

BEAT_SECONDS = 1.0


class EndpointAgent:
    """ports.Agent: what an episode is given."""

    model = "policy"

    def __init__(self, base_url: str, api_key: str, http: Any) -> None:
        self.base_url, self.api_key = base_url, api_key
        self._http = http

    async def say(
        self, messages: Sequence[dict[str, str]], stop: Sequence[str] = (), max_tokens: int | None = None
    ) -> str:
        """One chat completion. Raises OutOfRoom where no turn fits any more, EngineError for any other refusal."""
        body: dict[str, Any] = {"model": self.model, "messages": list(messages), "stop": list(stop)}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        answer = await self._http.post(
            f"{self.base_url}/chat/completions", json=body, headers={"authorization": f"Bearer {self.api_key}"}
        )
        said = answer.json()
        if answer.status_code != 200:
            refused = said["error"]
            raise (OutOfRoom if refused["code"] == "context_length_exceeded" else EngineError)(refused["message"])
        return str(said["choices"][0]["message"]["content"])


class AgentsProcess:
    def __init__(self, link: Link, hello: AgentsHello) -> None:
        self.link = link
        settings = settings_from(hello.settings)
        self.task = cast(EpisodeTask, make_task(settings.task, settings.run.seed))
        import_reward(settings.task)
        self.hub = EpisodeHub(Path(hello.run_directory) / "policy", settings.rollout, self.send)
        self.key = secrets.token_urlsafe(24)
        self.desk = Desk(cast(Hub, self.hub), EndpointAgent.model)
        self.running: dict[int, tuple[RunEpisode, asyncio.Task[None]]] = {}
        self.base_url = ""

    async def serve(self) -> None:
        import httpx

        loop = asyncio.get_running_loop()
        gate = Gate(self.key, self.hub.options.max_body_bytes, self.hub.options.body_seconds)
        app = Endpoint(self.desk, gate, lambda: (b"", "text/plain"), lambda path, status: None).app()
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off", access_log=False)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        self.base_url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as self.http:
            loop.add_reader(self.link.channel.fileno(), self.hear)
            self.hear()
            self.send(AgentsUp())
            while not serving.done():
                await asyncio.sleep(BEAT_SECONDS)
                self.send(AgentsBeat())

    # -- the main process --------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        self.link.send(message)
        if self.link.channel.wants_to_write:
            asyncio.get_running_loop().add_writer(self.link.channel.fileno(), self._flush)

    def _flush(self) -> None:
        self.link.channel.flush()
        if not self.link.channel.wants_to_write:
            asyncio.get_running_loop().remove_writer(self.link.channel.fileno())

    def hear(self) -> None:
        for message in self.link.poll(0):
            match message:
                case RunEpisode():
                    self.abort(message.trajectory_id)
                    playing = asyncio.get_running_loop().create_task(self.play(message))
                    self.running[message.trajectory_id] = message, playing
                case AbortEpisodes():
                    for trajectory_id in message.trajectory_ids:
                        self.abort(trajectory_id)
                case TurnIs():
                    self.hub.answered(message)

    def abort(self, trajectory_id: int) -> None:
        asked, playing = self.running.pop(trajectory_id, (None, None))
        if asked is not None and playing is not None:
            self.hub.end(asked)
            playing.cancel()

    # -- episodes ----------------------------------------------------------------------------------------------

    async def play(self, asked: RunEpisode) -> None:
        """One episode from its prompt to its reward; whatever it raises is reported."""
        episode = self.hub.begin(asked)
        session = session_of(asked)
        agent = EndpointAgent(self.base_url, f"{self.key}:{session}", self.http)
        try:
            reward = checked(await self.task.episode(asked.prompt, agent), asked.prompt)
            result: Any = episode.ended(reward)
        except (Exception, SystemExit) as error:  # the user's code may raise anything; it becomes a reported failure
            words = f"the episode raised {type(error).__name__}: {one_line(str(error), 200)}"
            result = EpisodeRaised(asked.trajectory_id, asked.attempt, words)
        if self.running.get(asked.trajectory_id, (None,))[0] is asked:
            del self.running[asked.trajectory_id]
            self.hub.end(asked)
            self.send(result)
        self.desk.conversations.forget(session)


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, AgentsHello)
    asyncio.run(AgentsProcess(link, hello).serve())
    os._exit(1)


if __name__ == "__main__":
    work(main, ToAgents)
