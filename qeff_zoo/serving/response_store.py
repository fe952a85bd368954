# SPDX-License-Identifier: Apache-2.0
"""Responses of `/v1/responses` in memory: those that are kept, and those that run in the background."""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from qeff_zoo.runtime import Handle
from qeff_zoo.serving.answers import json_answer
from qeff_zoo.serving.errors import ApiError, brief
from qeff_zoo.serving.objects import Object

#: Bytes of kept conversations, and of one of them.
MAX_KEPT = 64 << 20
MAX_CONVERSATION = 8 << 20


@dataclass(frozen=True)
class _Stored:
    """Response with its conversation.

    Args:
        body: Object of the response.
        messages: Messages of the conversation, including those of the response.
        nbytes: Size of both as JSON.
    """

    body: Object
    messages: list[Object]
    nbytes: int


@dataclass(frozen=True)
class _Running:
    """Response that runs in the background.

    Args:
        body: Object of the response.
        messages: Messages of the conversation before the response.
        handles: Handles of its generation.
        task: Task that keeps the finished response.
    """

    body: Object
    messages: list[Object]
    handles: Sequence[Handle]
    task: asyncio.Task[None]


class ResponseStore:
    """Most recent responses by id, for the thread of the event loop."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._nbytes = 0
        self._running: dict[str, _Running] = {}

    def run(
        self,
        body: Object,
        messages: list[Object],
        handles: Sequence[Handle],
        work: Coroutine[Any, Any, None],
    ) -> None:
        """Run a response in the background.

        Args:
            body: Object of the response so far.
            messages: Messages of the conversation before the response.
            handles: Handles of its generation.
            work: Coroutine that waits for them, and keeps the finished response.
        """
        name, task = body["id"], asyncio.create_task(work)
        self._running[name] = _Running(body, messages, handles, task)
        task.add_done_callback(lambda _: self._running.pop(name, None))

    async def until_ended(self, name: str) -> None:
        """Wait for the end of a response in the background, so that its model stays in memory."""
        if running := self._running.get(name):
            await asyncio.wait({running.task})

    def shown(self, name: str) -> Object:
        """Return the object of a response, which may be running.

        Raises:
            ApiError: There is none of this id.
        """
        if running := self._running.get(name):
            return {**running.body, "status": "in_progress"}
        return self.find(name).body

    def cancel(self, name: str) -> Object:
        """End a response that runs in the background; return its object.

        Raises:
            ApiError: There is none of this id, or it does not run in the background.
        """
        running = self._running.pop(name, None)
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
        running.task.cancel()
        for handle in running.handles:
            handle.cancel()
        self.add({**running.body, "status": "cancelled"}, running.messages)
        return self.shown(name)

    def add(self, body: Object, messages: list[Object]) -> None:
        """Keep a response; the oldest ones make room. One that is too long is not kept."""
        nbytes = _nbytes([body, messages])
        if nbytes > MAX_CONVERSATION:
            return
        self._stored[body["id"]] = _Stored(body, messages, nbytes)
        self._nbytes += nbytes
        while self._nbytes > MAX_KEPT:
            _, oldest = self._stored.popitem(last=False)
            self._nbytes -= oldest.nbytes

    def find(self, name: str, param: str | None = None) -> _Stored:
        """Return a kept response.

        Raises:
            ApiError: There is none of this id.
        """
        if name in self._running:
            raise ApiError(
                400,
                f"Response {brief(name)} is in progress; expected a finished one. Retrieve it until its status is "
                "'completed'.",
                param=param,
                code="response_not_finished",
            )
        if name not in self._stored:
            raise ApiError(
                404,
                f"There is no response {brief(name)}; expected one of this server that was kept (`store`), and is not "
                "older than the most recent ones. Send the whole conversation as 'input'.",
                param=param,
                code="response_not_found",
            )
        self._stored.move_to_end(name)
        return self._stored[name]

    def remove(self, name: str) -> None:
        """Forget a response; one in the background ends.

        Raises:
            ApiError: There is none of this id.
        """
        if name in self._running:
            self.cancel(name)
        self._nbytes -= self.find(name).nbytes
        del self._stored[name]


def _nbytes(content: object) -> int:
    """Return the memory of JSON values, in a time that does not depend on the lengths of their texts."""
    total, left = 0, [content]
    while left:
        one = left.pop()
        total += sys.getsizeof(one)
        if isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list):
            left += one
    return total


def kept(api: str, store: ResponseStore) -> APIRouter:
    """Return the endpoints of kept responses.

    Args:
        api: Prefix of their paths.
        store: Kept responses of the server.
    """
    router = APIRouter()

    @router.get(f"{api}responses/{{name}}")
    async def retrieve(name: str) -> Response:
        return await json_answer(store.shown(name))

    @router.post(f"{api}responses/{{name}}/cancel")
    async def cancel(name: str) -> Response:
        return JSONResponse(store.cancel(name))

    @router.delete(f"{api}responses/{{name}}")
    async def delete(name: str) -> Response:
        store.remove(name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    return router
