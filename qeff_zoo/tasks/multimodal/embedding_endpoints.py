# SPDX-License-Identifier: Apache-2.0
"""Embeddings of chats with images: one thread that serves all clients, and the endpoint.

A chat in `messages` has one embedding, as in vLLM's API. Each text of `input` is a user's message.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from qeff_zoo.runtime import Request, Stats
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import Encoded
from qeff_zoo.serving.errors import blaming, unknown_parameter
from qeff_zoo.serving.queues.media import Preparation
from qeff_zoo.serving.requests.encoder_schemas import PromptEmbeddingRequest
from qeff_zoo.serving.requests.media_queue import MediaQueue
from qeff_zoo.serving.requests.price import BOUNDS
from qeff_zoo.serving.requests.prompts import prepare_chat
from qeff_zoo.serving.requests.schemas import ChatRequest, listed
from qeff_zoo.tasks.encoders.endpoints.embeddings import embedded
from qeff_zoo.tasks.encoders.endpoints.scores import require_few
from qeff_zoo.tasks.multimodal.image_text_embedding_session import ImageTextEmbeddingSession


class PromptQueue(MediaQueue[ImageTextEmbeddingSession]):
    """Queue of embedding requests, whose prompts run one at a time in the order of arrival.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
    """

    thread = "qeff-zoo embeddings"

    def __init__(self, session: ImageTextEmbeddingSession, *, max_waiting: int) -> None:
        super().__init__(session, max_waiting=max_waiting)
        self._tokens = 0

    async def embed(
        self, preparations: Sequence[Preparation[Request]]
    ) -> tuple[list[Encoded], Array]:
        """Return the tokens of prompts, and an embedding of each.

        Raises:
            BusyError: The queue is full.
            GenerationError: A prompt cannot be embedded.
            ApiError: The server shuts down, or the request is refused.
        """
        with self._requests.one():
            prompts = [await self.pool.prepare(preparation) for preparation in preparations]
            vectors = [await self._calls.run(partial(self._embed, prompt)) for prompt in prompts]
        return [Encoded.of_ids(prompt.prompt) for prompt in prompts], np.stack(vectors)

    def _embed(self, prompt: Request) -> Array:
        self._tokens += len(prompt.prompt)
        vector: Array = self.session.embed([prompt])[0]
        return vector

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""
        running = min(self._requests.active, 1)
        images: Any = self.session.shown
        stats = self._requests.stats(rows=1, running=running, prompt_tokens=self._tokens)
        return replace(stats, **images)


def routes(
    api: str, queue: PromptQueue, admit: Callable[[Any], object], hosts: Collection[str]
) -> APIRouter:
    """Return the endpoint of embeddings.

    Args:
        api: Prefix of the path.
        queue: Queue of the requests.
        admit: Function that checks the model of a body.
        hosts: Hosts from which images are fetched; empty for images in the request alone.
    """
    router = APIRouter()

    @router.post(f"{api}embeddings")
    async def embeddings(request: HttpRequest, body: PromptEmbeddingRequest) -> Response:
        admit(body)
        preparations = [*_preparations(queue.session, body, hosts)]
        return await embedded(request, body, queue.embed(preparations), body.dimensions)

    return router


def _preparations(
    session: ImageTextEmbeddingSession, body: PromptEmbeddingRequest, hosts: Collection[str]
) -> Iterator[Preparation[Request]]:
    """Yield the preparation of each prompt of a request."""
    special = body.add_special_tokens
    if special is not None and session.tokenizer and session.tokenizer.encode(""):
        raise unknown_parameter("add_special_tokens", special)  # the processor decides
    if body.input is None:
        yield _of_chat(session, body.chat, hosts)
        return
    for given in require_few(listed(body.input), "input"):
        if isinstance(given, str) and session.chat_template is not None:
            chat = {"model": body.model, "messages": [{"role": "user", "content": given}]}
            yield _of_chat(session, ChatRequest.model_validate(chat), hosts)
        else:
            yield _of_text(session, given)


def _of_chat(
    session: ImageTextEmbeddingSession, chat: ChatRequest, hosts: Collection[str]
) -> Preparation[Request]:
    prepared = yield from prepare_chat(session, chat, None, BOUNDS, hosts)
    return prepared.requests[0]


def _of_text(session: ImageTextEmbeddingSession, given: str | list[int]) -> Preparation[Request]:
    with blaming("input"):
        return session.request(given)
    yield  # no step takes long
