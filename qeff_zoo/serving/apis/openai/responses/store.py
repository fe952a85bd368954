# SPDX-License-Identifier: Apache-2.0
"""Responses of `/v1/responses` in memory: those that are kept, and those that run in the background."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from qeff_zoo.runtime import Handle
from qeff_zoo.serving.answers.large import json_answer
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.answers.streaming import EventStream, Recording
from qeff_zoo.serving.apis.openai.responses import conversations, memory
from qeff_zoo.serving.apis.openai.responses.conversations import Conversations
from qeff_zoo.serving.apis.openai.responses.lists import Paging
from qeff_zoo.serving.apis.openai.responses.memory import ClientMemory, size_of
from qeff_zoo.serving.errors import ApiError, brief
from qeff_zoo.serving.queues.accounts import Client, current

#: Responses of one client that run in the background.
MAX_BACKGROUND = 64


class Reading(BaseModel):
    """Query parameters of a kept response."""

    stream: bool = False
    starting_after: int | None = Field(None, ge=0)


@dataclass(frozen=True)
class Stored:
    """Response with its conversation.

    Args:
        body: Object of the response.
        items: Items before the output of the response.
        recording: Events of its stream; None if it has none.
    """

    body: Object
    items: list[Object]
    recording: Recording | None = None

    @property
    def conversation(self) -> list[Object]:
        """Items before the output of the response, and those of the output."""
        return [*self.items, *self.body["output"]]


@dataclass(frozen=True, kw_only=True)
class Running:
    """Response that runs in the background.

    Args:
        body: Object of the response so far.
        items: Items before its output.
        handles: Handles of its generation.
        recording: Recording of its stream; None if it has none.
        client: Client that made it.
    """

    body: Object
    items: list[Object]
    handles: Sequence[Handle]
    recording: Recording | None = None
    client: Client = field(default_factory=current)


class ResponseStore:
    """Most recent responses by id, for the thread of the event loop.

    Each belongs to the key of its request, and does not exist for other keys. Responses and conversations share one
    memory.
    """

    def __init__(self) -> None:
        self.memory = ClientMemory()
        self.conversations = Conversations(self.memory)
        self._running: dict[str, tuple[Running, asyncio.Task[None]]] = {}

    def check_background(self) -> None:
        """Refuse one more response in the background, if too many of the current client run.

        Raises:
            ApiError: The limit is reached.
        """
        name = current().name
        count = sum(one.client.name == name for one, _ in self._running.values())
        if count >= MAX_BACKGROUND:
            raise ApiError(
                429,
                f"{count:,} responses of this client run in the background; expected fewer than {MAX_BACKGROUND:,} "
                "before another one. Wait for one of them, or cancel one.",
                param="background",
                code="queue_full",
            )

    def run(self, running: Running, work: Coroutine[Any, Any, None]) -> None:
        """Run a response in the background.

        Args:
            running: The response.
            work: Coroutine that waits for its generation, and keeps the finished response.
        """
        name, task = running.body["id"], asyncio.create_task(work)
        self._running[name] = running, task

        def end(_: object) -> None:
            self._running.pop(name, None)
            if running.recording:
                running.recording.end()

        task.add_done_callback(end)

    async def until_ended(self, name: str) -> None:
        """Wait for the end of a response in the background, so that its model stays in memory."""
        if found := self._running.get(name):
            await asyncio.wait({found[1]})

    def shown(self, name: str) -> Object:
        """Return the object of a response, which may be running.

        Raises:
            ApiError: There is none of this id.
        """
        if running := self._own(name):
            return {**running.body, "status": "in_progress"}
        return self.find(name).body

    def items(self, name: str) -> list[Object]:
        """Return the items before the output of a response, which may be running.

        Raises:
            ApiError: There is none of this id.
        """
        return (self._own(name) or self.find(name)).items

    def recording(self, name: str) -> Recording:
        """Return the recording of the stream of a response, which may be running.

        Raises:
            ApiError: There is none of this id, or it has no recording.
        """
        recording = (self._own(name) or self.find(name)).recording
        if recording is None:
            raise ApiError(
                400,
                f"Response {brief(name)} has no recorded stream; expected one that was created with 'background' and "
                "'stream', and whose events are not too large to be kept. Retrieve it without 'stream'.",
                param="stream",
                code="invalid_value",
            )
        return recording

    def cancel(self, name: str) -> Object:
        """End a response that runs in the background; return its object.

        Raises:
            ApiError: There is none of this id, or it does not run in the background.
        """
        running = self._own(name)
        if running is None:
            body = self.find(name).body
            if not body["background"]:
                raise ApiError(
                    400,
                    f"Cannot cancel a synchronous response. Response {brief(name)} was created without 'background'; "
                    "expected one that runs in the background. Close the connection instead.",
                    code="invalid_value",
                )
            return body
        _, task = self._running.pop(name)
        task.cancel()
        for handle in running.handles:
            handle.cancel()
        body = {**running.body, "status": "cancelled"}
        self.add(Stored(body, running.items, running.recording))
        return body

    def add(self, stored: Stored) -> None:
        """Keep a response of the current client; older ones make room. One that is too large is not kept."""
        size = size_of(stored.body)
        nbytes = size + size_of(stored.items)
        if stored.recording:  # its last event, with the body, is still to come
            recorded = nbytes + stored.recording.nbytes + size
            if recorded <= memory.MAX_VALUE:
                nbytes = recorded
            else:
                stored = Stored(stored.body, stored.items)
        if nbytes <= memory.MAX_VALUE:
            self.memory.put(stored.body["id"], stored, nbytes)

    def find(self, name: str, param: str | None = None) -> Stored:
        """Return a kept response.

        Raises:
            ApiError: There is none of this id.
        """
        if self._own(name):
            raise ApiError(
                400,
                f"Response {brief(name)} is in progress; expected a finished one. Retrieve it until its status is "
                "'completed'.",
                param=param,
                code="response_not_finished",
            )
        stored = self.memory.find(name, Stored)
        if stored is None:
            raise ApiError(
                404,
                f"There is no response {brief(name)}; expected one of this server that was kept (`store`), and is not "
                "older than the most recent ones. Send the whole conversation as 'input'.",
                param=param,
                code="response_not_found",
            )
        return stored

    def remove(self, name: str) -> None:
        """Forget a response; one in the background ends.

        Raises:
            ApiError: There is none of this id.
        """
        if self._own(name):
            self.cancel(name)
        self.find(name)
        self.memory.drop(name)

    def _own(self, name: str) -> Running | None:
        """Return a running response of the current client's key; None for those of others."""
        running, _ = self._running.get(name, (None, None))
        return running if running and running.client.tenant == current().tenant else None


def routes(api: str, store: ResponseStore) -> APIRouter:
    """Return the endpoints of kept responses and of conversations.

    Args:
        api: Prefix of their paths.
        store: Kept responses of the server.
    """
    router = APIRouter()

    @router.get(f"{api}responses/{{name}}")
    async def retrieve(name: str, reading: Annotated[Reading, Query()]) -> Response:
        if reading.stream:
            begin = 0 if reading.starting_after is None else reading.starting_after + 1
            return EventStream(store.recording(name).read(begin), ())
        return await json_answer(store.shown(name))

    @router.get(f"{api}responses/{{name}}/input_items")
    async def input_items(name: str, paging: Annotated[Paging, Query()]) -> Response:
        return await json_answer(paging.page(store.items(name)))

    @router.post(f"{api}responses/{{name}}/cancel")
    async def cancel(name: str) -> Response:
        return JSONResponse(store.cancel(name))

    @router.delete(f"{api}responses/{{name}}")
    async def delete(name: str) -> Response:
        store.remove(name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    router.include_router(conversations.routes(api, store.conversations))
    return router
