# SPDX-License-Identifier: Apache-2.0
"""Endpoint of entities: `/predict` with `inputs`, as Hugging Face's API of token classification."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.serving.requests.encoder_schemas import Truncated
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.endpoints.scores import encoded, require_few
from qeff_zoo.tasks.encoders.entities import OUTSIDE, Aggregation, Entity
from qeff_zoo.tasks.encoders.token_classification_session import TokenClassificationSession


class EntityParameters(BaseModel):
    """Parameters of the entities."""

    model_config = ConfigDict(strict=True, extra="forbid")

    aggregation_strategy: Aggregation | None = None
    ignore_labels: Annotated[list[str], Field(max_length=4096)] | None = None


class EntitiesRequest(Truncated):
    """Body of /predict for a model that labels tokens: a text, or several."""

    inputs: str | Annotated[list[str], Field(min_length=1, fail_fast=True)]
    parameters: EntityParameters = EntityParameters()


def routes(
    queue: EncoderQueue, session: TokenClassificationSession, admit: Callable[[Any], object]
) -> APIRouter:
    """Return the endpoint of entities.

    Args:
        queue: Queue of the requests.
        session: Session of the queue.
        admit: Function that checks the model of a request.
    """
    router = APIRouter()

    @router.post("/predict")
    async def predict(request: Request, body: EntitiesRequest) -> Response:
        admit(body)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        require_few(texts, "inputs")
        read, outputs = await encoded(request, queue, texts, body.truncation, "inputs")
        wanted = body.parameters
        aggregation: Aggregation = wanted.aggregation_strategy or "simple"
        ignored = OUTSIDE if wanted.ignore_labels is None else wanted.ignore_labels
        answer = [
            _listed(session.entities_of(*one, aggregation, ignored), aggregation)
            for one in zip(texts, read, outputs, strict=True)
        ]
        return JSONResponse(answer[0] if isinstance(body.inputs, str) else answer)

    return router


def _listed(entities: Sequence[Entity], aggregation: Aggregation) -> list[dict[str, Any]]:
    """Return entities by the names of transformers' pipeline."""
    name = "entity" if aggregation == "none" else "entity_group"
    return [
        {
            name: entity.label,
            "score": entity.score,
            "word": entity.text,
            "start": entity.start,
            "end": entity.end,
        }
        for entity in entities
    ]
