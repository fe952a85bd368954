# SPDX-License-Identifier: Apache-2.0
"""Endpoints of embeddings in ollama's API."""

import time

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from qeff_zoo.serving.answers.large import json_answer
from qeff_zoo.serving.apis.ollama.schemas import EmbedBody, EmbeddingsBody
from qeff_zoo.serving.requests.encoder_schemas import EmbeddingRequest
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.requests.schemas import listed
from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
from qeff_zoo.tasks.encoders.endpoints.embedding_prompts import prompted
from qeff_zoo.tasks.encoders.endpoints.embeddings import vectors_of
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.endpoints.scores import encoded, require_few


def routes(queue: EncoderQueue, session: EmbeddingSession, model: Model) -> APIRouter:
    """Return the endpoints of embeddings: of length 1, and the former one, as the model computes them.

    Args:
        queue: Queue of the requests.
        session: Session of the queue.
        model: Description of the model.
    """
    router = APIRouter()

    @router.post("/api/embed")
    async def embed(request: Request, body: EmbedBody) -> Response:
        model.admit(body)
        begun = time.perf_counter_ns()
        options = EmbeddingRequest(
            input=body.input, dimensions=None, truncate="END" if body.truncate else "NONE"
        )
        texts = require_few(listed(body.input), "input")
        reading = prompted(session, options)
        read, outputs = await encoded(request, queue, texts, options, "input", reading=reading)
        vectors = vectors_of(session, outputs, body.dimensions, normalize=True)
        return await json_answer(
            {
                "model": body.model,
                "embeddings": vectors,
                "total_duration": time.perf_counter_ns() - begun,
                "load_duration": 0,
                "prompt_eval_count": sum(len(text.ids) for text in read),
            }
        )

    @router.post("/api/embeddings")
    async def embeddings(request: Request, body: EmbeddingsBody) -> Response:
        model.admit(body)
        if not body.prompt:
            return JSONResponse({"embedding": []})
        options = EmbeddingRequest(input=body.prompt, dimensions=None, truncate="END")
        reading = prompted(session, options)
        _, outputs = await encoded(
            request, queue, [body.prompt], options, "prompt", reading=reading
        )
        (vector,) = vectors_of(session, outputs, None, normalize=None)
        return JSONResponse({"embedding": vector.tolist()})

    return router
