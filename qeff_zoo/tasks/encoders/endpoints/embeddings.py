# SPDX-License-Identifier: Apache-2.0
"""Text embeddings: OpenAI's endpoint and its response object, and the endpoint of Text Embeddings Inference."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from qeff_zoo.errors import BusyError
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import Encoded
from qeff_zoo.serving.answers.large import base64_of, json_answer
from qeff_zoo.serving.answers.streaming import unless_gone
from qeff_zoo.serving.errors import ApiError, blaming, invalid, queue_full
from qeff_zoo.serving.requests.encoder_schemas import (
    EmbeddingRequest,
    ImageEmbeddingRequest,
    InputsRequest,
    PromptEmbeddingRequest,
    SimilarityRequest,
)
from qeff_zoo.serving.requests.schemas import listed
from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
from qeff_zoo.tasks.encoders.endpoints.embedding_prompts import prompted
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.endpoints.scores import encoded, encoded_input, require_few
from qeff_zoo.tasks.encoders.similarity import normalized


def embedding_list(
    body: EmbeddingRequest | ImageEmbeddingRequest | PromptEmbeddingRequest,
    texts: Sequence[Encoded],
    vectors: Array,
) -> dict[str, Any]:
    """Return OpenAI's object of embeddings for `json_answer`. Each truncated text has `"truncated": true`.

    Args:
        body: Body of the request.
        texts: All encoded texts.
        vectors: (texts, hidden), float32.
    """
    data = (
        {"object": "embedding", "index": number, "embedding": _written(row, body.encoding_format)}
        | ({"truncated": True} if text.cut else {})
        for number, (text, row) in enumerate(zip(texts, vectors, strict=True))
    )
    tokens = sum(len(text.ids) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    frame = {"id": f"embd-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
    return {**frame, "model": body.model, "usage": usage, "data": data}


def _written(vector: Array, encoding: str) -> str | Array:
    return vector if encoding == "float" else base64_of(vector)


def shortened(vectors: Array, dimensions: int | None, param: str = "dimensions") -> Array:
    """Return the first dimensions of embeddings, scaled to length 1 as those of models that are trained for it."""
    if dimensions is None:
        return vectors
    if dimensions > vectors.shape[1]:
        raise ApiError(
            400,
            f"Parameter {param!r} is {dimensions:,}; expected at most {vectors.shape[1]:,}. Ask for fewer.",
            param=param,
            code="invalid_value",
        )
    return normalized(vectors[:, :dimensions])


def vectors_of(
    session: EmbeddingSession,
    outputs: Sequence[Array],
    dimensions: int | None = None,
    *,
    normalize: bool | None = None,
    param: str = "dimensions",
) -> Array:
    """Return the embeddings of a request, (texts, hidden).

    Args:
        session: Session of the package.
        outputs: Output of the program for each text.
        dimensions: Number of the first dimensions, scaled to length 1; None for the model's.
        normalize: Whether they are scaled to length 1 as well; None for the model's own.
        param: Parameter with the number of dimensions.
    """
    vectors = shortened(session.shortened(np.stack(outputs)), dimensions, param)
    return normalized(vectors) if normalize else vectors


async def embedded(
    request: Request,
    body: ImageEmbeddingRequest | PromptEmbeddingRequest,
    work: Awaitable[tuple[list[Encoded], Array]],
    dimensions: int | None = None,
) -> Response:
    """Return the response to a request with images.

    Args:
        request: Request of the client.
        body: Body of the request.
        work: Texts and embeddings, awaited while the client is connected.
        dimensions: Number of dimensions of each embedding; None for all.
    """
    try:
        with blaming("messages" if body.messages else "input"):
            texts, vectors = await unless_gone(request, work)
    except BusyError as error:
        raise queue_full(error) from error
    return await json_answer(embedding_list(body, texts, shortened(vectors, dimensions)))


def routes(
    api: str, queue: EncoderQueue, session: EmbeddingSession, admit: Callable[[Any], object]
) -> APIRouter:
    """Return the endpoints of embeddings.

    Args:
        api: Prefix of the path.
        queue: Queue of the requests.
        session: Session of the queue.
        admit: Function that checks the model of a body.
    """
    router = APIRouter()

    @router.post(f"{api}embeddings")
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        admit(body)
        read, outputs = await encoded_input(request, queue, body, prompted(session, body))
        vectors = vectors_of(session, outputs, body.dimensions, normalize=body.normalized)
        return await json_answer(embedding_list(body, read, vectors))

    @router.post("/embed")
    async def embed(request: Request, body: InputsRequest) -> Response:
        admit(body)
        if not body.normalize and session.normalizes:
            raise invalid("normalize", False, "true: the model itself normalizes", "Leave it out")
        texts, reading = require_few(listed(body.inputs), "inputs"), prompted(session, body)
        _, outputs = await encoded(
            request, queue, texts, body.truncation, "inputs", reading=reading
        )
        vectors = vectors_of(session, outputs, body.dimensions, normalize=body.normalize)
        return await json_answer(vectors)

    @router.post("/similarity")
    async def similarity(request: Request, body: SimilarityRequest) -> Response:
        admit(body)
        given, options = body.inputs, body.parameters
        texts = require_few([given.source_sentence, *given.sentences], "inputs")
        _, outputs = await encoded(
            request,
            queue,
            texts,
            options.truncation,
            "inputs",
            reading=prompted(session, options),
            written=0,
        )
        vectors = vectors_of(session, outputs)
        cosines = await asyncio.to_thread(session.similarity, vectors[:1], vectors[1:])
        return await json_answer(cosines[0])

    return router
