# SPDX-License-Identifier: Apache-2.0
"""Endpoint of choices: `/predict` with `inputs`, as Hugging Face's API of the task zero-shot-classification."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.runtime.labels import best_first
from qeff_zoo.serving.errors import blaming
from qeff_zoo.serving.requests.encoder_schemas import Truncated
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.endpoints.scores import encoded, require_few
from qeff_zoo.tasks.encoders.multiple_choice_session import MultipleChoiceSession


class ChoiceParameters(BaseModel):
    """Choices of a prompt."""

    model_config = ConfigDict(strict=True, extra="forbid")

    candidate_labels: Annotated[list[str], Field(min_length=2, fail_fast=True)]
    multi_label: Literal[False] | None = None  # as huggingface_hub's client sends it


class ChoiceRequest(Truncated):
    """Body of /predict for a model that chooses among texts: a prompt and its choices."""

    inputs: str
    parameters: ChoiceParameters


def routes(
    queue: EncoderQueue, session: MultipleChoiceSession, admit: Callable[[Any], object]
) -> APIRouter:
    """Return the endpoint of choices.

    Args:
        queue: Queue of the requests.
        session: Session of the queue.
        admit: Function that checks the model of a request.
    """
    router = APIRouter()

    @router.post("/predict")
    async def predict(request: Request, body: ChoiceRequest) -> Response:
        admit(body)
        choices = require_few(body.parameters.candidate_labels, "parameters.candidate_labels")
        with blaming("inputs"):
            pairs = session.pairs_of(body.inputs, choices)
        _, outputs = await encoded(request, queue, pairs, body.truncation, "inputs")
        best = best_first(choices, np.array(session.shares_of(outputs)))
        return JSONResponse([{"label": one.label, "score": one.score} for one in best])

    return router
