# SPDX-License-Identifier: Apache-2.0
"""Endpoint of questions: `/predict` with `inputs`, as Hugging Face's API of the task question-answering."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.serving.errors import blaming
from qeff_zoo.serving.requests.encoder_schemas import MAX_PROMPT
from qeff_zoo.serving.requests.schemas import RequestBody
from qeff_zoo.tasks.encoders.answer_spans import ExtractedAnswer
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.endpoints.scores import MAX_INPUTS, while_connected
from qeff_zoo.tasks.encoders.question_answering_session import QuestionAnsweringSession

#: Maximum number of characters of a context, which is tokenized whole.
MAX_CONTEXT = 1 << 18


class QuestionInputs(BaseModel):
    """Question and its context."""

    model_config = ConfigDict(strict=True, extra="forbid")

    question: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    context: Annotated[str, Field(min_length=1, max_length=MAX_CONTEXT)]


class QuestionParameters(BaseModel):
    """Parameters of the answers."""

    model_config = ConfigDict(strict=True, extra="forbid")

    top_k: int | None = Field(None, ge=1)
    doc_stride: int | None = Field(None, ge=0)
    max_answer_len: int | None = Field(None, ge=1)
    max_seq_len: int | None = Field(None, ge=1)
    handle_impossible_answer: bool | None = None
    align_to_words: bool | None = None


class QuestionRequest(RequestBody):
    """Body of /predict for a model that answers questions."""

    inputs: QuestionInputs
    parameters: QuestionParameters = QuestionParameters(
        top_k=None, doc_stride=None, max_answer_len=None, max_seq_len=None
    )


def routes(
    queue: EncoderQueue, session: QuestionAnsweringSession, admit: Callable[[Any], object]
) -> APIRouter:
    """Return the endpoint of questions.

    Args:
        queue: Queue of the requests.
        session: Session of the queue.
        admit: Function that checks the model of a request.
    """
    router = APIRouter()

    @router.post("/predict")
    async def predict(request: Request, body: QuestionRequest) -> Response:
        admit(body)
        given, context = body.parameters, body.inputs.context
        with blaming("parameters"):
            rules = session.rules_of(
                given.top_k,
                given.max_answer_len,
                given.handle_impossible_answer,
                given.align_to_words,
            )
        reading = partial(
            session.windows_of,
            body.inputs.question,
            context,
            given.max_seq_len,
            given.doc_stride,
            most=MAX_INPUTS,
        )
        windows, outputs = await while_connected(request, queue.encode_read(reading), "inputs")
        answers = await asyncio.to_thread(session.answers_of, context, windows, outputs, rules)
        listed = [_described(answer) for answer in answers]
        return JSONResponse(listed if rules.top_k > 1 else listed[0])

    return router


def _described(answer: ExtractedAnswer) -> dict[str, Any]:
    """Return an answer by the names of transformers' pipeline."""
    return {
        "score": answer.score,
        "start": answer.start,
        "end": answer.end,
        "answer": answer.text,
    }
