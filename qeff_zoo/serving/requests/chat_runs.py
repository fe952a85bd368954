# SPDX-License-Identifier: Apache-2.0
"""Chats of one model that run in its engine, for every API that the server has."""

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fastapi import Request

from qeff_zoo.runtime import Engine, Generation, Handle, TokenLogprobs
from qeff_zoo.runtime.text.chat_output import Event
from qeff_zoo.serving.answers.chats import Chat, chat_events
from qeff_zoo.serving.answers.completion_choices import cancelling, submit, whole
from qeff_zoo.serving.answers.streaming import unless_gone
from qeff_zoo.serving.monitoring.metrics import Metrics
from qeff_zoo.serving.queues.accounts import Turns, current
from qeff_zoo.serving.queues.media import MediaPool, Preparation
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.requests.price import Bounds
from qeff_zoo.serving.requests.prompts import prepare_chat
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.serving.requests.tools import ChatFormats

_PREPARATIONS = 8  # of a client at a time


class StreamBuilder(Protocol):
    """Builder of the stream events of an API."""

    def opening(self) -> Iterator[bytes]:
        """Yield the events at the start of a stream."""

    def grow(self, event: Event) -> Iterator[bytes]:
        """Yield the stream events of an event of the output."""


@dataclass(kw_only=True)
class ChatRuns:
    """Preparation and generation of chats.

    Args:
        engine: Engine that generates.
        model: Description of the model.
        metrics: Metrics of the server.
        image_hosts: Hosts from which images and videos are fetched for clients.
        formats: Formats of the model's chats.
        shares_prefixes: Whether clients with different keys share the prefix cache.
    """

    engine: Engine
    model: Model
    metrics: Metrics
    image_hosts: Collection[str]
    formats: ChatFormats
    shares_prefixes: bool = False
    turns: Turns = field(init=False)
    bounds: Bounds = field(init=False)
    pool: MediaPool = field(init=False)

    def __post_init__(self) -> None:
        self.bounds = Bounds(choices=self.engine.share)
        self.pool = MediaPool(self.bounds.decoded_bytes)
        self.turns = Turns(_PREPARATIONS)

    def prepare(self, body: ChatRequest) -> Preparation[Chat]:
        """Prepare the chat of a body.

        Raises:
            ApiError: The request cannot be served.
        """
        adapter = self.model.admit(body)
        return prepare_chat(
            self.engine.session, body, adapter, self.bounds, self.image_hosts, self.formats
        )

    async def begin(
        self, request: Request, preparation: Preparation[Chat]
    ) -> tuple[Chat, list[Handle]]:
        """Prepare a chat in its client's turn, and start to generate.

        Args:
            request: Request of the client, who may leave.
            preparation: Preparation from `prepare`.

        Raises:
            ApiError: The request cannot be served.
        """
        chat = await self._prepared(request, preparation)
        client = current()
        salt = b"" if self.shares_prefixes else client.tenant
        requests = [replace(one, client=client.name, salt=salt) for one in chat.requests]
        return chat, submit(self.engine, requests)

    async def count(self, request: Request, preparation: Preparation[Chat]) -> dict[str, object]:
        """Return the object of the number of tokens of a prompt, as in OpenAI's API.

        Args:
            request: Request of the client, who may leave.
            preparation: Preparation from `prepare`.

        Raises:
            ApiError: The request cannot be served.
        """
        chat = await self._prepared(request, preparation)
        tokens = chat.requests[0].prompt_tokens
        return {"object": "response.input_tokens", "input_tokens": tokens}

    async def _prepared(self, request: Request, preparation: Preparation[Chat]) -> Chat:
        async with self.turns.one():
            return await unless_gone(request, self.pool.prepare(preparation))

    async def stream(
        self,
        builder: StreamBuilder,
        chat: Chat,
        handles: Sequence[Handle],
        events: list[Event],
        tokens: list[TokenLogprobs] | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the stream events of a chat with one choice, but for its end.

        Args:
            builder: Builder of the stream events.
            chat: Prepared chat.
            handles: Handle of the choice.
            events: List to which the events of the output are appended.
            tokens: List to which log-probabilities are appended before the events that they belong to.

        Raises:
            ApiError: The same errors as `chat_events`.
        """
        for one in builder.opening():
            yield one
        async for _, delta, found in chat_events(chat, handles, self.metrics):
            events += found
            if tokens is not None:
                tokens += delta.logprobs
            for event in found:
                for one in builder.grow(event):
                    yield one

    async def finish(self, request: Request, handles: Sequence[Handle]) -> list[Generation]:
        """Wait for generations while the client is connected.

        Raises:
            ApiError: The same errors as `whole`.
        """
        with cancelling(handles):
            return await unless_gone(request, whole(handles, self.metrics))
