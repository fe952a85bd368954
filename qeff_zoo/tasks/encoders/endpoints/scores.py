# SPDX-License-Identifier: Apache-2.0
"""Endpoints of text encoders besides embeddings: rerank, score, classify and pooling, as in vLLM's API.

A reranker scores pairs of texts. A model of embeddings scores them by the cosine of their embeddings, or without
pooling by the cosines of their tokens (late interaction, as in ColBERT).
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qeff_zoo.checkpoint.sentence_transformers.settings import DOCUMENT, QUERY
from qeff_zoo.contract import (
    ENCODER_RANKING,
    FEATURE_EXTRACTION,
    SPARSE_EMBEDDING,
    TEXT_CLASSIFICATION,
    TEXT_RANKING,
    TOKEN_CLASSIFICATION,
)
from qeff_zoo.errors import BusyError
from qeff_zoo.runtime.activations import softmax
from qeff_zoo.runtime.labels import best_first
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.texts import Texts
from qeff_zoo.runtime.text.tokenizer import CHARACTERS_OF_TOKEN, Encoded, Tokenizer
from qeff_zoo.serving.answers.large import base64_of, check_numbers, json_answer
from qeff_zoo.serving.answers.streaming import unless_gone
from qeff_zoo.serving.errors import ApiError, blaming, invalid, queue_full
from qeff_zoo.serving.monitoring import request_usage
from qeff_zoo.serving.requests.encoder_schemas import (
    ClassifyRequest,
    EncoderRequest,
    InputRequest,
    PlainInputsRequest,
    PoolingRequest,
    PredictRequest,
    RerankRequest,
    ScoreRequest,
    ScoringRequest,
)
from qeff_zoo.serving.requests.rendering import text_to_tokenize
from qeff_zoo.serving.requests.schemas import MAX_TEXT, listed
from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
from qeff_zoo.tasks.encoders.endpoints.embedding_prompts import (
    Prompted,
    of_kind,
    prompted,
    selectors,
)
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.fill_mask_session import FillMaskSession
from qeff_zoo.tasks.encoders.session import EncoderSession
from qeff_zoo.tasks.encoders.sparse_embedding_session import SparseEmbeddingSession
from qeff_zoo.tasks.encoders.text_classification_session import TextClassificationSession

#: Maximum number of texts in a request, as in OpenAI's API.
MAX_INPUTS = 2048
#: Tasks of poolings in vLLM's API.
_POOLING_TASKS = {
    FEATURE_EXTRACTION: "embed",
    SPARSE_EMBEDDING: "embed",
    TEXT_CLASSIFICATION: "classify",
    TEXT_RANKING: "classify",
    ENCODER_RANKING: "classify",
    TOKEN_CLASSIFICATION: "token_classify",
}
_T = TypeVar("_T")
_Read = TypeVar("_Read", bound=Sequence[Encoded])


class Scorer(Protocol):
    """Relevance of texts to other texts."""

    async def __call__(
        self, request: Request, body: ScoringRequest, pairs: Sequence[tuple[str, str]], param: str
    ) -> tuple[list[float], int]:
        """Return the score of each pair, and the number of tokens."""


def require_few(texts: Sequence[_T], param: str) -> Sequence[_T]:
    """Return texts; refuse too many."""
    if len(texts) > MAX_INPUTS:
        raise ApiError(
            400,
            f"The request has {len(texts):,} inputs; expected at most {MAX_INPUTS:,}. Send the others apart.",
            param=param,
            code="invalid_value",
        )
    return texts


def require_short(
    tokenizer: Tokenizer | None,
    texts: Sequence[Texts],
    length: int,
    side: Literal["left", "right"] | None,
    param: str,
) -> None:
    """Refuse texts that are far longer than the tokens which truncation on the left keeps.

    Such a text is tokenized whole, since its tokens may depend on everything before them. Truncation on the right
    tokenizes its beginning alone.

    Args:
        tokenizer: Tokenizer of the texts; None for texts that are token ids.
        texts: Texts, pairs of texts, or lists of token ids.
        length: Maximum number of tokens of each.
        side: Side on which they are truncated; None for the tokenizer's.
        param: Parameter with the texts.
    """
    if tokenizer is None or (side or tokenizer.truncation_side) == "right":
        return
    usual = CHARACTERS_OF_TOKEN * length
    parts = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
    beyond = sum(max(0, len(part) - usual) for part in parts if isinstance(part, str))
    if beyond > MAX_TEXT:
        raise ApiError(
            400,
            f"The texts have {beyond:,} characters beyond {usual:,} of each, and are truncated on the left to "
            f"{length:,} tokens; expected at most {MAX_TEXT:,}. Shorten them, or truncate them on the right.",
            param=param,
            code="context_length_exceeded",
        )


async def encoded_input(
    request: Request, queue: EncoderQueue, body: InputRequest, reading: Prompted | None = None
) -> tuple[list[Encoded], list[Array]]:
    """Encode the texts of a request, or its chat as one text, while its client is connected; see `encoded`."""
    if body.messages is not None:
        for name, value in selectors(body).items():
            raise invalid(
                name, value, "none beside 'messages', which are a whole prompt", "Leave it out"
            )
        chat = partial(text_to_tokenize, queue.session, body)
        return await encoded(
            request, queue, chat, body, "messages", special_tokens=bool(body.add_special_tokens)
        )
    assert body.input is not None
    texts = require_few(listed(body.input), "input")
    special_tokens = body.add_special_tokens is not False
    return await encoded(
        request, queue, texts, body, "input", special_tokens=special_tokens, reading=reading
    )


async def encoded(
    request: Request,
    queue: EncoderQueue,
    texts: Sequence[Texts] | Callable[[], str],
    body: EncoderRequest,
    param: str,
    *,
    special_tokens: bool = True,
    reading: Prompted | None = None,
    written: int = 1,
    check: Callable[[list[Encoded]], object] = lambda read: None,
) -> tuple[list[Encoded], list[Array]]:
    """Encode the texts of a request while its client is connected.

    Args:
        request: Request of the client.
        queue: Queue of the requests.
        texts: Texts, pairs of texts, or lists of token ids; or a function that renders a chat as one text.
        body: Body of the request, which sets the truncation.
        param: Parameter with the texts.
        special_tokens: Whether the tokenizer's special tokens are added.
        reading: Prompt and length of the texts; None for the session's own.
        written: Number of times that the answer has the output of each text; 0 for an answer without it.
        check: Function that refuses the texts before they are encoded.

    Raises:
        ApiError: The request cannot be served, or its answer would be too large.
    """
    longest = reading.max_length if reading else queue.session.max_length
    length, own = body.truncate_prompt_tokens, longest if reading else None
    if length is not None:
        length = longest if length == -1 else min(length, longest)
    # The beginning of a text shows whether it is too long.
    side = body.cut_on if body.truncate != "NONE" else "right"
    if not callable(texts):
        require_short(queue.session.tokenizer, texts, length or longest, side, param)
        if length is not None:
            part = slice(-length, None) if body.cut_on == "left" else slice(length)
            texts = [text[part] if isinstance(text, list) else text for text in texts]

    def require(read: list[Encoded]) -> None:
        check(read)
        check_numbers(written * _numbers(queue.session, read), param)

    work = queue.encode(
        texts,
        cut=body.truncate != "NONE",
        max_length=length or own,
        side=side,
        special_tokens=special_tokens,
        prompt=reading.prompt if reading else None,
        kind=reading.kind if reading else None,
        check=require,
    )
    return await while_connected(request, work, param)


async def while_connected(
    request: Request, work: Coroutine[Any, Any, tuple[_Read, list[Array]]], param: str
) -> tuple[_Read, list[Array]]:
    """Wait for the tokens of a request and their outputs while its client is connected.

    Args:
        request: Request of the client.
        work: Call of the queue.
        param: Parameter with the texts.

    Raises:
        ApiError: The request cannot be served.
    """
    try:
        with blaming(param):
            read, outputs = await unless_gone(request, work)
            request_usage.count(prompt_tokens=sum(len(one.ids) for one in read))
            return read, outputs
    except BusyError as error:
        raise queue_full(error) from error


def _numbers(session: EncoderSession, texts: Sequence[Encoded]) -> int:
    """Return the number of numbers in the outputs of texts."""
    if isinstance(session, FillMaskSession):
        return sum(len(session.masks_of(text)) for text in texts) * session.width
    per_token = session.has_states or session.task == TOKEN_CLASSIFICATION
    rows = sum(len(text.ids) for text in texts) if per_token else len(texts)
    return rows * session.width


def reranks(queue: EncoderQueue) -> Scorer | None:
    """Return the scorer of a model; None for a classifier of several labels, or of tokens."""
    session = queue.session
    if isinstance(session, TextClassificationSession):
        return None if len(session.labels) > 1 else _of_pairs(queue, session)
    if isinstance(session, EmbeddingSession | SparseEmbeddingSession):
        return _of_embeddings(queue, session)
    return None


def _of_pairs(queue: EncoderQueue, session: TextClassificationSession) -> Scorer:
    async def scores(
        request: Request, body: ScoringRequest, pairs: Sequence[tuple[str, str]], param: str
    ) -> tuple[list[float], int]:
        reading = _named(session, body)
        read, outputs = await encoded(request, queue, pairs, body, param, reading=reading)
        return [float(_scores(session, body, output)[0]) for output in outputs], _tokens(read)

    return scores


def _of_embeddings(
    queue: EncoderQueue, session: EmbeddingSession | SparseEmbeddingSession
) -> Scorer:
    async def scores(
        request: Request, body: ScoringRequest, pairs: Sequence[tuple[str, str]], param: str
    ) -> tuple[list[float], int]:
        _named(session, body)
        rows: list[dict[str, Any]] = []
        tokens = 0
        for kind, each in (
            (QUERY, [one for one, _ in pairs]),
            (DOCUMENT, [one for _, one in pairs]),
        ):
            texts = [*dict.fromkeys(each)]  # each is encoded once
            reading = of_kind(session, kind)
            read, outputs = await encoded(
                request, queue, texts, body, param, reading=reading, written=0
            )
            values = [session.comparable(*both, kind) for both in zip(read, outputs, strict=True)]
            rows.append(dict(zip(texts, values, strict=True)))
            tokens += _tokens(read)
        queries, documents = rows

        def interact() -> list[float]:
            """Return the similarity of each pair."""
            return [
                float(session.similarity(queries[one], documents[other])[0, 0])
                for one, other in pairs
            ]

        return await asyncio.to_thread(interact), tokens

    return scores


def _named(session: EncoderSession, body: ScoringRequest) -> Prompted | None:
    """Return how texts are read by the prompt that a request names; None for no name.

    Raises:
        ApiError: The model is no CrossEncoder with that prompt.
    """
    if body.prompt_name is None:
        return None
    encodes = isinstance(session, TextClassificationSession)
    prompts = session.settings.prompts if encodes else {}
    if body.prompt_name not in prompts:
        known = ", ".join(map(repr, prompts)) or "none: the model has no prompts of a CrossEncoder"
        raise invalid("prompt_name", body.prompt_name, f"one of {known}", "Change it")
    return Prompted(prompt=prompts[body.prompt_name], max_length=session.max_length, kind=None)


def _scores(session: TextClassificationSession, body: ScoringRequest, logits: Array) -> Array:
    return session.activate(logits) if body.use_activation else logits


def routes(api: str, queue: EncoderQueue, admit: Callable[[Any], object]) -> APIRouter:
    """Return the endpoints that a model's task has.

    Args:
        api: Prefix of OpenAI's paths; vLLM's clients use the paths without it as well.
        queue: Queue of the requests.
        admit: Function that checks the model of a body.
    """
    router = APIRouter()
    if (scores := reranks(queue)) is not None:
        _add_scores(router, api, queue, scores, admit)
    if isinstance(queue.session, TextClassificationSession):
        _add_classify(router, api, queue, queue.session, admit)
        _add_predict(router, queue, queue.session, admit)
    _add_pooling(router, api, queue, admit)
    return router


def _add_scores(
    router: APIRouter,
    api: str,
    queue: EncoderQueue,
    scores: Scorer,
    admit: Callable[[Any], object],
) -> None:
    @router.post(f"{api}score")
    @router.post("/score")
    async def score(request: Request, body: ScoreRequest) -> Response:
        admit(body)
        values, tokens = await scores(
            request, body, require_few(body.pairs, "documents"), "documents"
        )
        data = [
            {"index": number, "object": "score", "score": value}
            for number, value in enumerate(values)
        ]
        return JSONResponse(_listed(body, "score", data, tokens))

    @router.post(f"{api}rerank")
    @router.post("/rerank")
    @router.post("/v2/rerank")
    async def rerank(request: Request, body: RerankRequest) -> Response:
        admit(body)
        texts = require_few(body.contents, "documents")
        read = texts
        if most := body.max_tokens_per_doc:
            with blaming("documents"):
                read = await asyncio.to_thread(_beginnings, queue.session, texts, most)
        values, tokens = await scores(
            request, body, [(body.query_text, text) for text in read], "documents"
        )
        order = sorted(range(len(values)), key=lambda number: -values[number])
        if body.texts:
            few = order[: body.top_n or None]
            return JSONResponse(
                [
                    {"index": number, "score": values[number]}
                    | ({"text": texts[number]} if body.return_text else {})
                    for number in few
                ]
            )
        results: list[dict[str, Any]] = [
            {"index": number, "relevance_score": values[number]}
            | ({"document": {"text": texts[number]}} if body.return_documents else {})
            for number in order[: body.top_n or None]
        ]
        frame = {"id": f"rerank-{uuid.uuid4().hex}", "model": body.model}
        return JSONResponse({**frame, "usage": _usage(tokens), "results": results})


def _beginnings(session: EncoderSession, texts: Sequence[str], tokens: int) -> list[str]:
    """Return the beginnings of texts with a number of tokens; a prompt or a template is not part of them."""
    if session.tokenizer is None:
        return [*texts]  # refused when they are read
    ends = [
        [end for _, end in one.offsets]
        for one in session.tokenizer.encode_all(texts, tokens + 1, "right", special_tokens=False)
    ]
    return [
        text[: found[tokens - 1]] if len(found) > tokens else text
        for text, found in zip(texts, ends, strict=True)
    ]


def _add_classify(
    router: APIRouter,
    api: str,
    queue: EncoderQueue,
    session: TextClassificationSession,
    admit: Callable[[Any], object],
) -> None:
    @router.post(f"{api}classify")
    @router.post("/classify")
    async def classify(request: Request, body: ClassifyRequest) -> Response:
        admit(body)
        read, outputs = await encoded_input(request, queue, body, _named(session, body))

        def described(number: int, logits: Array) -> dict[str, Any]:
            values = _scores(session, body, logits)
            return {
                "index": number,
                "label": best_first(session.labels, values)[0].label,
                "probs": values,
                "num_classes": len(session.labels),
            }

        data = (described(*one) for one in enumerate(outputs))
        return await json_answer(_listed(body, "classify", data, _tokens(read)))


def _add_predict(
    router: APIRouter,
    queue: EncoderQueue,
    session: TextClassificationSession,
    admit: Callable[[Any], object],
) -> None:
    @router.post("/predict")
    async def predict(request: Request, body: PredictRequest) -> Response:
        admit(body)
        texts = require_few(body.texts, "inputs")
        _, outputs = await encoded(request, queue, texts, body.truncation, "inputs")

        def labelled(logits: Array) -> list[dict[str, Any]]:
            values = logits if body.raw_scores else session.activate(logits)
            best = best_first(session.labels, values)
            return [{"score": one.score, "label": one.label} for one in best]

        answers = map(labelled, outputs)
        return await json_answer(next(answers) if body.is_single else answers)


def _add_pooling(
    router: APIRouter, api: str, queue: EncoderQueue, admit: Callable[[Any], object]
) -> None:
    session = queue.session
    task = "token_embed" if session.has_states else _POOLING_TASKS[session.task]

    def values(body: PoolingRequest, one: Encoded, output: Array, kind: str | None = None) -> Array:
        """Return the output of a text of a kind: its embedding, its scores, or those of each token."""
        if isinstance(session, TextClassificationSession):
            return _scores(session, body, output)
        if isinstance(session, SparseEmbeddingSession):
            return session.active(output).dense()
        tokens = (
            session.compared(one, output, kind)
            if isinstance(session, EmbeddingSession) and session.has_states
            else output[: len(one.ids)]
        )
        if task == "token_classify":
            return softmax(tokens) if body.use_activation else tokens
        if session.has_states:
            return tokens
        return (
            session.shortened(output[None])[0] if isinstance(session, EmbeddingSession) else output
        )

    @router.post(f"{api}pooling")
    @router.post("/pooling")
    async def pooling(request: Request, body: PoolingRequest) -> Response:
        admit(body)
        if body.task not in (None, task):
            raise invalid("task", body.task, f"{task!r}, or none", "Leave it out")
        reading = _prompted(session, body)
        read, outputs = await encoded_input(request, queue, body, reading)
        kind = reading.kind if reading and body.messages is None else None

        def described(number: int, text: Encoded, output: Array) -> dict[str, Any]:
            scores = np.asarray(values(body, text, output, kind))
            data = base64_of(scores) if body.encoding_format == "base64" else scores
            return {"index": number, "object": "pooling", "data": data}

        data = (
            described(number, *both) for number, both in enumerate(zip(read, outputs, strict=True))
        )
        return await json_answer(_listed(body, "pool", data, _tokens(read)))

    if isinstance(session, EmbeddingSession) and session.has_states:
        _add_embed_all(router, queue, session, admit)


def _prompted(session: EncoderSession, body: PoolingRequest) -> Prompted | None:
    """Return how the texts of a request are read; None for the session's own way.

    Raises:
        ApiError: The model has no such prompt, or none at all.
    """
    if isinstance(session, EmbeddingSession | SparseEmbeddingSession):
        return prompted(session, body)
    for name, value in selectors(body).items():
        if name != "prompt_name":
            raise invalid(name, value, "none: the model returns no embeddings", "Leave it out")
    return _named(session, body)


def _add_embed_all(
    router: APIRouter,
    queue: EncoderQueue,
    session: EmbeddingSession,
    admit: Callable[[Any], object],
) -> None:
    @router.post("/embed_all")
    async def embed_all(request: Request, body: PlainInputsRequest) -> Response:
        admit(body)
        texts, reading = require_few(listed(body.inputs), "inputs"), prompted(session, body)
        read, outputs = await encoded(
            request, queue, texts, body.truncation, "inputs", reading=reading
        )
        embeddings = (
            session.compared(*both, reading.kind) for both in zip(read, outputs, strict=True)
        )
        return await json_answer(embeddings)


def _listed(body: EncoderRequest, kind: str, data: Iterable[Any], tokens: int) -> dict[str, Any]:
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model,
        "data": data,
        "usage": _usage(tokens),
    }


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _tokens(read: Sequence[Encoded]) -> int:
    return sum(len(text.ids) for text in read)
