# SPDX-License-Identifier: Apache-2.0
"""Endpoint of masks: `/predict` with `inputs`, as Hugging Face's API of the task fill-mask."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.runtime.text.tokenizer import Encoded
from qeff_zoo.serving.answers.large import check_numbers, json_answer
from qeff_zoo.serving.errors import blaming
from qeff_zoo.serving.requests.encoder_schemas import Truncated
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.endpoints.scores import encoded, require_few
from qeff_zoo.tasks.encoders.fill_mask_session import Fill, FillMaskSession


class FillParameters(BaseModel):
    """Parameters of the tokens for masks."""

    model_config = ConfigDict(strict=True, extra="forbid")

    top_k: int | None = Field(None, ge=1)
    targets: str | Annotated[list[str], Field(max_length=4096)] | None = None


class FillRequest(Truncated):
    """Body of /predict for a model that fills masks: a text, or several."""

    inputs: str | Annotated[list[str], Field(min_length=1, fail_fast=True)]
    parameters: FillParameters = FillParameters(top_k=None)


def routes(
    queue: EncoderQueue, session: FillMaskSession, admit: Callable[[Any], object]
) -> APIRouter:
    """Return the endpoint of masks.

    Args:
        queue: Queue of the requests.
        session: Session of the queue.
        admit: Function that checks the model of a request.
    """
    router = APIRouter()

    @router.post("/predict")
    async def predict(request: Request, body: FillRequest) -> Response:
        admit(body)
        texts = _several(body.inputs)
        require_few(texts, "inputs")
        with blaming("parameters.top_k"):
            top_k = session.count_of(body.parameters.top_k)
        with blaming("parameters.targets"):
            targets = await asyncio.to_thread(session.targets_of, _several(body.parameters.targets))

        def check(read: Sequence[Encoded]) -> None:
            session.require_masks(read)
            # Each token for a mask comes with its whole text.
            tokens = sum(len(session.masks_of(one)) * top_k * len(one.ids) for one in read)
            check_numbers(tokens, "inputs")

        read, outputs = await encoded(request, queue, texts, body.truncation, "inputs", check=check)
        answer = (
            _listed(session.fills_of(one, logits, top_k, targets))
            for one, logits in zip(read, outputs, strict=True)
        )
        return await json_answer(next(answer) if isinstance(body.inputs, str) else answer)

    return router


def _several(texts: str | list[str] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []


def _listed(fills: Sequence[Sequence[Fill]]) -> list[Any]:
    """Return the tokens for one mask, or those for each of several, by the names of transformers' pipeline."""
    described = [[*map(_described, each)] for each in fills]
    return described[0] if len(described) == 1 else described


def _described(fill: Fill) -> dict[str, Any]:
    return {
        "score": fill.score,
        "token": fill.token,
        "token_str": fill.text,
        "sequence": fill.sequence,
    }
