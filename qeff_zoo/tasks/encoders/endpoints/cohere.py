# SPDX-License-Identifier: Apache-2.0
"""Cohere's endpoints of text embeddings: embeddings in several types, and prompts by the kind of input."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from qeff_zoo.runtime.program import Array
from qeff_zoo.serving.answers.large import base64_of, json_answer
from qeff_zoo.serving.requests.encoder_schemas import CohereEmbedRequest
from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
from qeff_zoo.tasks.encoders.endpoints.embedding_prompts import prompted
from qeff_zoo.tasks.encoders.endpoints.embeddings import vectors_of
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.endpoints.scores import encoded, require_few


def _bits(vectors: Array) -> Array:
    """Return the signs of embeddings, eight in a byte."""
    return np.packbits(vectors > 0, axis=1)


#: Functions from embeddings, (texts, hidden), to what is written of them, by type.
_TYPES: Mapping[str, Callable[[Array], Array | Iterator[str]]] = MappingProxyType(
    {
        "float": lambda vectors: vectors,
        "base64": lambda vectors: map(base64_of, vectors),
        "ubinary": _bits,
        "binary": lambda vectors: _bits(vectors).astype(np.int16) - 128,
    }
)


def routes(
    queue: EncoderQueue, session: EmbeddingSession, admit: Callable[[Any], object]
) -> APIRouter:
    """Return the endpoints of embeddings, which differ for a request without types.

    Args:
        queue: Queue of the requests.
        session: Session of the queue.
        admit: Function that checks the model of a body.
    """
    router = APIRouter()

    @router.post("/v1/embed")
    @router.post("/v2/embed")
    async def embed(request: Request, body: CohereEmbedRequest) -> Response:
        admit(body)
        texts = require_few(body.given, "texts")
        reading = prompted(session, body)
        read, outputs = await encoded(
            request, queue, texts, body, "texts", reading=reading, written=len(body.embedding_types)
        )
        vectors = vectors_of(session, outputs, body.output_dimension, param="output_dimension")
        tokens = sum(len(one.ids) for one in read)
        version = "1" if request.url.path == "/v1/embed" else "2"
        answer = {
            "id": str(uuid.uuid4()),
            "embeddings": {name: _TYPES[name](vectors) for name in body.embedding_types},
            "texts": [*texts],
            "meta": {
                "api_version": {"version": version},
                "billed_units": {"input_tokens": tokens, "image_tokens": 0},
            },
            "response_type": "embeddings_by_type",
        }
        if version == "1" and "embedding_types" not in body.model_fields_set:
            answer |= {"embeddings": vectors, "response_type": "embeddings_floats"}
        return await json_answer(answer)

    return router
