# SPDX-License-Identifier: Apache-2.0
"""Text embeddings: OpenAI's endpoint and its response object, and the endpoint of Text Embeddings Inference."""

import asyncio
import base64
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from qeff_zoo.errors import BusyError
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.tokenizer import Encoded
from qeff_zoo.serving.embedding_prompts import prompted
from qeff_zoo.serving.encoder_queue import EncoderQueue
from qeff_zoo.serving.encoder_schemas import (
    EmbeddingRequest,
    ImageEmbeddingRequest,
    InputsRequest,
    PromptEmbeddingRequest,
    SimilarityRequest,
)
from qeff_zoo.serving.errors import ApiError, blaming, invalid, queue_full
from qeff_zoo.serving.schemas import listed
from qeff_zoo.serving.scores import encoded, encoded_input, require_few
from qeff_zoo.serving.streaming import unless_gone
from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
from qeff_zoo.tasks.encoders.similarity import normalized


def embedding_list(
    body: EmbeddingRequest | ImageEmbeddingRequest | PromptEmbeddingRequest,
    texts: Sequence[Encoded],
    vectors: Array,
) -> str:
    """Return OpenAI's object of embeddings, as JSON. Each truncated text has `"truncated": true`.

    Args:
        body: Body of the request.
        texts: All encoded texts.
        vectors: (texts, hidden), float32.
    """
    # Serialized one by one, so that other threads can run: a number takes a microsecond, and there may be millions.
    data = ",".join(
        json.dumps(
            {"object": "embedding", "index": number, "embedding": _written(row, body.encoding_format)}
            | ({"truncated": True} if text.cut else {}),
            allow_nan=False,
        )
        for number, (text, row) in enumerate(zip(texts, vectors, strict=True))
    )  # fmt: skip
    tokens = sum(len(text.ids) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    frame = {"id": f"embd-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
    rest = json.dumps({**frame, "model": body.model, "usage": usage})
    return f'{rest[:-1]}, "data": [{data}]}}'


def _written(vector: Array, encoding: str) -> str | list[float]:
    if encoding == "float":
        numbers: list[float] = vector.tolist()
        return numbers
    return base64_of(vector)


def base64_of(vector: Array) -> str:
    """Return the float32 numbers of an embedding in base64, the lowest byte first."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


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
    found = shortened(session.shortened(np.stack(outputs)), dimensions, param)
    return normalized(found) if normalize else found


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
    content = await asyncio.to_thread(embedding_list, body, texts, shortened(vectors, dimensions))
    return Response(content, media_type="application/json")


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
        content = await asyncio.to_thread(embedding_list, body, read, vectors)
        return Response(content, media_type="application/json")

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
        content = await asyncio.to_thread(json.dumps, vectors.tolist(), allow_nan=False)
        return Response(content, media_type="application/json")

    @router.post("/similarity")
    async def similarity(request: Request, body: SimilarityRequest) -> Response:
        admit(body)
        given, options = body.inputs, body.parameters
        texts = require_few([given.source_sentence, *given.sentences], "inputs")
        _, outputs = await encoded(
            request, queue, texts, options.truncation, "inputs", reading=prompted(session, options)
        )
        vectors = vectors_of(session, outputs)
        found = await asyncio.to_thread(session.similarity, vectors[:1], vectors[1:])
        return JSONResponse(found[0].tolist())

    return router
