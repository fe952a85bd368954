# SPDX-License-Identifier: Apache-2.0
"""Sparse embeddings of texts: the endpoint of Text Embeddings Inference."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from qeff_zoo.runtime.program import Array
from qeff_zoo.serving.requests.encoder_schemas import PlainInputsRequest
from qeff_zoo.serving.requests.schemas import listed
from qeff_zoo.tasks.encoders.endpoints.embedding_prompts import prompted
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.endpoints.scores import encoded, require_few
from qeff_zoo.tasks.encoders.sparse_embedding_session import SparseEmbeddingSession


def routes(
    queue: EncoderQueue, session: SparseEmbeddingSession, admit: Callable[[Any], object]
) -> APIRouter:
    """Return the endpoint of sparse embeddings.

    Args:
        queue: Queue of the requests.
        session: Session of the queue.
        admit: Function that checks the model of a body.
    """
    router = APIRouter()

    @router.post("/embed_sparse")
    async def embed_sparse(request: Request, body: PlainInputsRequest) -> Response:
        admit(body)
        texts = require_few(listed(body.inputs), "inputs")
        _, outputs = await encoded(
            request, queue, texts, body.truncation, "inputs", reading=prompted(session, body)
        )
        content = await asyncio.to_thread(_written, session, outputs)
        return Response(content, media_type="application/json")

    return router


def _written(session: SparseEmbeddingSession, outputs: Sequence[Array]) -> str:
    """Return the token ids of each text with their weights, as JSON."""
    weights = [
        [
            {"index": index, "value": value}
            for index, value in zip(one.indices.tolist(), one.values.tolist(), strict=True)
        ]
        for one in map(session.active, outputs)
    ]
    return json.dumps(weights, allow_nan=False)
