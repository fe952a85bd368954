# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Responses API: `/v1/responses`, with earlier responses in memory, tools, structured output and streams.

A request becomes a chat, and the events of its output become items. Responses are kept for `previous_response_id`
unless the request sets `store` to false: the most recent ones, until the server ends.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.background import BackgroundTask
from starlette.types import Receive, Scope, Send

from qeff_zoo.runtime import Generation, Handle
from qeff_zoo.runtime.text.chat_output import Event, Text
from qeff_zoo.serving.answers.chats import Chat
from qeff_zoo.serving.answers.completion_choices import cancelling, whole
from qeff_zoo.serving.answers.large import json_answer
from qeff_zoo.serving.answers.logprobs import LogprobObjects
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.answers.streaming import EventStream, Recording
from qeff_zoo.serving.apis.openai.responses.conversations import check_room
from qeff_zoo.serving.apis.openai.responses.items import messages_of
from qeff_zoo.serving.apis.openai.responses.lists import identified
from qeff_zoo.serving.apis.openai.responses.objects import ResponseBuilder
from qeff_zoo.serving.apis.openai.responses.schemas import ResponsesRequest
from qeff_zoo.serving.apis.openai.responses.store import ResponseStore, Running, Stored
from qeff_zoo.serving.errors import ApiError, renaming
from qeff_zoo.serving.requests.chat_runs import ChatRuns
from qeff_zoo.serving.requests.schemas import ChatRequest

#: Parameters of a chat, by their names here.
_PARAMS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
    "chat_template_kwargs": "reasoning",
}


@dataclass(frozen=True)
class _Input:
    """Items before the output of a response.

    Args:
        earlier: Items of the conversation, or of earlier responses.
        new: Items of the request.
    """

    earlier: list[Object]
    new: list[Object]

    @classmethod
    def of(cls, body: ResponsesRequest, store: ResponseStore) -> "_Input":
        """Return the input of a request.

        Raises:
            ApiError: There is no such earlier response or conversation, or the conversation would be too large.
        """
        earlier: list[Object] = []
        if body.previous_response_id is not None:
            earlier = store.find(body.previous_response_id, "previous_response_id").conversation
        if body.conversation_id is None:
            return cls(earlier, identified(body.input, earlier))
        found = store.conversations.find(body.conversation_id, "conversation")
        new = identified(body.input, found.items)
        check_room(found, new, "input")
        return cls([*found.items], new)

    @property
    def items(self) -> list[Object]:
        """All items."""
        return [*self.earlier, *self.new]

    @property
    def messages(self) -> list[Object]:
        """Messages of all items.

        Raises:
            ApiError: An item of the request is of an unknown form.
        """
        return messages_of(self.items, len(self.earlier))


@dataclass(frozen=True)
class _Turn:
    """Generation of one response, and where its result is kept.

    Args:
        runs: Chats of the model.
        store: Kept responses of the server.
        given: Input of the response.
        builder: Builder of its object and its events.
        chat: Chat.
        handles: Handle of its generation.
    """

    runs: ChatRuns
    store: ResponseStore
    given: _Input
    builder: ResponseBuilder
    chat: Chat
    handles: Sequence[Handle]

    def keep(self, made: Object, recording: Recording | None = None) -> Object:
        """Keep the object of a response that has ended, and return it."""
        request = self.builder.request
        if request.store:
            self.store.add(Stored(made, self.given.items, recording))
        if request.conversation_id is not None and made["status"] != "failed":
            added = [*self.given.new, *made["output"]]
            self.store.conversations.extend(request.conversation_id, added)
        return made

    async def whole(self, generation: Generation) -> Object:
        """Keep the object of a response, and return it."""
        output = self.chat.output(generation)
        return self.keep(await asyncio.to_thread(self.builder.whole, generation, output))

    async def stream(self, recording: Recording | None = None) -> AsyncIterator[bytes]:
        """Yield the events of the response, and keep it before the last one."""
        builder, events = self.builder, list[Event]()
        try:
            async for one in self.runs.stream(
                builder, self.chat, self.handles, events, builder.tokens
            ):
                yield one
        except ApiError as error:
            failed = self.keep(_failed(builder, error), recording)
            yield builder.event("response.failed", response=failed)
            return
        if not events:  # a response has a message, even without text
            for one in builder.grow(Text("")):
                yield one
        for one in builder.close():
            yield one
        (generation,) = (handle.result() for handle in self.handles)
        made = self.keep(builder.finished(generation), recording)
        yield builder.event(f"response.{made['status']}", response=made)

    def in_background(self) -> Response:
        """Run the response in the background; return its stream, or else its object."""
        queued = self.builder.body("queued")
        recording = Recording() if self.builder.request.stream else None
        begun = Running(
            body=queued, items=self.given.items, handles=self.handles, recording=recording
        )
        self.store.run(begun, self.record(recording) if recording else self.run())
        if recording:
            return _RecordedStream(recording)
        ended = BackgroundTask(self.store.until_ended, self.builder.id)
        return JSONResponse(queued, background=ended)

    async def run(self) -> None:
        """Wait for the response in the background, and keep it."""
        with cancelling(self.handles):
            try:
                (generation,) = await whole(self.handles, self.runs.metrics)
            except ApiError as error:
                self.keep(_failed(self.builder, error))
                return
        await self.whole(generation)

    async def record(self, recording: Recording) -> None:
        """Record the stream of the response in the background, and keep it."""
        with cancelling(self.handles):
            async for one in self.stream(recording):
                recording.add(one)


class _RecordedStream(EventStream):
    """Stream of a response in the background, whose request lasts until its end, so that its model stays in memory.

    Args:
        recording: Recording of the stream.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.read(), ())
        self._recording = recording

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, and wait for its end even if the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._recording.ended.wait()


def _failed(builder: ResponseBuilder, error: ApiError) -> Object:
    """Return the object of a response that failed."""
    failure = {"code": error.code or "server_error", "message": error.message}
    return builder.body("failed", error=failure)


def routes(api: str, runs: ChatRuns, store: ResponseStore) -> APIRouter:
    """Return the endpoint that creates responses.

    Args:
        api: Prefix of its path.
        runs: Chats of the model.
        store: Kept responses of the server.
    """
    router = APIRouter()
    tokenizer = runs.engine.session.tokenizer

    @router.post(f"{api}responses")
    async def create(request: Request, body: ResponsesRequest) -> Response:
        body.check_storage()
        if body.background:
            store.check_background()
        given = _Input.of(body, store)
        with renaming(_PARAMS):
            chat_body = ChatRequest.model_validate(body.as_chat(given.messages))
            preparation = runs.prepare(chat_body)
            body.model = chat_body.model
            chat, handles = await runs.begin(request, preparation)
        count = partial(chat.reasoning_tokens, tokenizer=tokenizer)
        builder = ResponseBuilder(body, count, LogprobObjects(tokenizer))
        turn = _Turn(runs, store, given, builder, chat, handles)
        if body.background:
            return turn.in_background()
        if body.stream:
            return EventStream(turn.stream(), handles)
        (generation,) = await runs.finish(request, handles)
        return await json_answer(await turn.whole(generation))

    @router.post(f"{api}responses/input_tokens")
    async def count(request: Request, body: ResponsesRequest) -> Response:
        with renaming(_PARAMS):
            chat = ChatRequest.model_validate(body.as_chat(_Input.of(body, store).messages))
            return JSONResponse(await runs.count(request, runs.prepare(chat)))

    return router
