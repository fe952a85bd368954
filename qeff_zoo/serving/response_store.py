# SPDX-License-Identifier: Apache-2.0
"""Responses of `/v1/responses` in memory: those that are kept, and those that run in the background."""

import asyncio
import sys
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from qeff_zoo.runtime import Handle
from qeff_zoo.serving.accounts import Client, current
from qeff_zoo.serving.answers import json_answer
from qeff_zoo.serving.errors import ApiError, brief
from qeff_zoo.serving.objects import Object

#: Bytes of kept conversations, and of one of them.
MAX_KEPT = 64 << 20
MAX_CONVERSATION = 8 << 20
#: Responses of one client that run in the background.
MAX_BACKGROUND = 64


@dataclass(frozen=True)
class _Stored:
    """Response with its conversation.

    Args:
        body: Object of the response.
        messages: Messages of the conversation, including those of the response.
        nbytes: Size of both as JSON.
        client: Client that made it.
    """

    body: Object
    messages: list[Object]
    nbytes: int
    client: Client


@dataclass(frozen=True)
class _Running:
    """Response that runs in the background.

    Args:
        body: Object of the response.
        messages: Messages of the conversation before the response.
        handles: Handles of its generation.
        task: Task that keeps the finished response.
        client: Client that made it.
    """

    body: Object
    messages: list[Object]
    handles: Sequence[Handle]
    task: asyncio.Task[None]
    client: Client


_Any = TypeVar("_Any", _Stored, _Running)


class ResponseStore:
    """Most recent responses by id, for the thread of the event loop.

    Each belongs to the key of its request, and does not exist for other keys. Clients share the memory: the oldest
    responses of the client with most make room.
    """

    def __init__(self) -> None:
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._nbytes: Counter[str] = Counter()
        self._running: dict[str, _Running] = {}

    def check_background(self) -> None:
        """Refuse one more response in the background, if too many of the current client run.

        Raises:
            ApiError: The limit is reached.
        """
        name = current().name
        count = sum(one.client.name == name for one in self._running.values())
        if count >= MAX_BACKGROUND:
            raise ApiError(
                429,
                f"{count:,} responses of this client run in the background; expected fewer than {MAX_BACKGROUND:,} "
                "before another one. Wait for one of them, or cancel one.",
                param="background",
                code="queue_full",
            )

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
        self._running[name] = _Running(body, messages, handles, task, current())
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
        if running := self._own(self._running, name):
            return {**running.body, "status": "in_progress"}
        return self.find(name).body

    def cancel(self, name: str) -> Object:
        """End a response that runs in the background; return its object.

        Raises:
            ApiError: There is none of this id, or it does not run in the background.
        """
        running = self._own(self._running, name)
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
        del self._running[name]
        running.task.cancel()
        for handle in running.handles:
            handle.cancel()
        self.add({**running.body, "status": "cancelled"}, running.messages)
        return self.shown(name)

    def add(self, body: Object, messages: list[Object]) -> None:
        """Keep a response of the current client; older ones make room. One that is too long is not kept."""
        nbytes = _nbytes([body, messages])
        if nbytes > MAX_CONVERSATION:
            return
        self._stored[body["id"]] = _Stored(body, messages, nbytes, current())
        self._nbytes[current().name] += nbytes
        while self._nbytes.total() > MAX_KEPT:
            ((largest, _),) = self._nbytes.most_common(1)
            self._drop(next(id for id, one in self._stored.items() if one.client.name == largest))

    def find(self, name: str, param: str | None = None) -> _Stored:
        """Return a kept response.

        Raises:
            ApiError: There is none of this id.
        """
        if self._own(self._running, name):
            raise ApiError(
                400,
                f"Response {brief(name)} is in progress; expected a finished one. Retrieve it until its status is "
                "'completed'.",
                param=param,
                code="response_not_finished",
            )
        stored = self._own(self._stored, name)
        if stored is None:
            raise ApiError(
                404,
                f"There is no response {brief(name)}; expected one of this server that was kept (`store`), and is not "
                "older than the most recent ones. Send the whole conversation as 'input'.",
                param=param,
                code="response_not_found",
            )
        self._stored.move_to_end(name)
        return stored

    def remove(self, name: str) -> None:
        """Forget a response; one in the background ends.

        Raises:
            ApiError: There is none of this id.
        """
        if self._own(self._running, name):
            self.cancel(name)
        self.find(name)
        self._drop(name)

    def _own(self, responses: Mapping[str, _Any], name: str) -> _Any | None:
        """Return a response of the current client's key; None for those of others."""
        found = responses.get(name)
        return found if found and found.client.tenant == current().tenant else None

    def _drop(self, name: str) -> None:
        stored = self._stored.pop(name)
        self._nbytes[stored.client.name] -= stored.nbytes


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
