# SPDX-License-Identifier: Apache-2.0
"""Embeddings of images, and of texts to match with them: one thread that serves all clients, and the endpoint.

An image is a part of a user's message in `messages`, as in vLLM's API.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Request, Response

from qeff_zoo.media.images import size_of
from qeff_zoo.runtime import ImageEmbeddingSession, Stats, ZeroShotSession
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.tokenizer import Encoded
from qeff_zoo.serving.embeddings import embedded
from qeff_zoo.serving.encoder_schemas import ImageEmbeddingRequest
from qeff_zoo.serving.errors import ApiError, blaming
from qeff_zoo.serving.media import MediaPool, Preparation, Step
from qeff_zoo.serving.price import BOUNDS, BYTES_OF_PIXEL
from qeff_zoo.serving.prompts import read_large, read_media
from qeff_zoo.serving.rendering import refuse_files
from qeff_zoo.serving.schemas import listed
from qeff_zoo.serving.scores import require_short
from qeff_zoo.serving.threads import Calls
from qeff_zoo.serving.waiting import Waiting


class ImageQueue:
    """Queue of embedding requests for images or texts, in the order of arrival.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
    """

    def __init__(self, session: ImageEmbeddingSession, *, max_waiting: int) -> None:
        self.session, self._requests = session, Waiting(max_waiting)
        self._calls = Calls("qeff-zoo images")
        #: Pool of threads that decode images.
        self.pool = MediaPool(BOUNDS.decoded_bytes)
        self._tokens = self._images = 0

    async def embed(
        self, preparation: Preparation[tuple[Array | None, list[Encoded]]]
    ) -> tuple[list[Encoded], Array]:
        """Return the texts of a request, and an embedding of each text or image.

        Raises:
            BusyError: The queue is full.
            GenerationError: An input cannot be embedded.
            ApiError: The server shuts down, or the request is refused.
        """
        with self._requests.one():
            images, texts = await self.pool.prepare(preparation)
            found = await self._calls.run(partial(self._embed, images, texts))
            return texts or [Encoded.of_ids([])] * len(found), found

    def _embed(self, images: Array | None, texts: list[Encoded]) -> Array:
        self._tokens += sum(len(text.ids) for text in texts)
        if images is not None:
            self._images += len(images)
            return self.session.run(images)
        return cast("ZeroShotSession", self.session).embed_texts([text.ids for text in texts])

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""
        rows, running = self.session.batch_sizes[-1], min(self._requests.active, 1)
        stats = self._requests.stats(rows=rows, running=running, prompt_tokens=self._tokens)
        return replace(stats, images=self._images, encoded_images=self._images)

    def close(self) -> None:
        """Finish the running call, and start no further ones. Not for the event loop's thread while the loop runs."""
        self._calls.close()


def routes(
    api: str, queue: ImageQueue, admit: Callable[[Any], object], hosts: Collection[str]
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
    async def embeddings(request: Request, body: ImageEmbeddingRequest) -> Response:
        admit(body)
        return await embedded(request, body, queue.embed(_read(queue.session, body, hosts)))

    return router


def _read(
    session: ImageEmbeddingSession, body: ImageEmbeddingRequest, hosts: Collection[str]
) -> Preparation[tuple[Array | None, list[Encoded]]]:
    """Return the pixels of a request's image, or its tokenized texts."""
    urls = [("image", url) for message in body.messages or () for url in message.images]
    messages = [message.text for message in body.messages or () if message.text]
    texts = [*(listed(body.input) if body.input else []), *messages]
    param = "messages" if body.messages else "input"
    refuse_files(body.model, body.messages or (), ("images",))
    if len(urls) > 1 or bool(urls) == bool(texts) or (body.messages and body.input):
        raise _refusal(
            f"The request has {len(urls)} images and {len(texts)} texts; expected one image in 'messages', or "
            "texts in 'input'. Send them apart.",
            param,
        )
    if texts and not session.reads_texts:
        raise _refusal(
            f"Model {body.model!r} reads images alone; expected one in 'messages', as a part of type image_url. Send "
            "that, or ask a model that reads texts.",
            param,
        )
    read: list[Encoded] = []
    if texts:
        matching = cast("ZeroShotSession", session)
        require_short(matching.tokenizer, texts, matching.max_length, None, param)
        with blaming(param):
            read = matching.read(texts)
    images = yield from read_media(urls, hosts)
    if not images:
        return None, read
    with blaming(param):
        (width, height) = size_of(images[0], BOUNDS.images)
        nbytes = BYTES_OF_PIXEL * width * height
        image = yield from read_large(images[0], nbytes)
        return (yield Step(partial(session.prepare, [image]), nbytes)), read


def _refusal(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
