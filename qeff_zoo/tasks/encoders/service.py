# SPDX-License-Identifier: Apache-2.0
"""Service of text encoders: embeddings, classification and reranking, in OpenAI's, vLLM's and others' APIs."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import API, Offer
from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
from qeff_zoo.tasks.encoders.endpoints import (
    cohere,
    embeddings,
    entities,
    fill_mask,
    multiple_choice,
    ollama,
    question_answering,
    scores,
    sparse_embeddings,
)
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.fill_mask_session import FillMaskSession
from qeff_zoo.tasks.encoders.multiple_choice_session import MultipleChoiceSession
from qeff_zoo.tasks.encoders.question_answering_session import QuestionAnsweringSession
from qeff_zoo.tasks.encoders.session import EncoderSession
from qeff_zoo.tasks.encoders.sparse_embedding_session import SparseEmbeddingSession
from qeff_zoo.tasks.encoders.text_classification_session import TextClassificationSession
from qeff_zoo.tasks.encoders.token_classification_session import TokenClassificationSession


class TextEncoding:
    """Embeddings, classification and reranking of texts."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return False

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[EncoderQueue]:
        """Return a context manager that opens a queue."""
        return closing(EncoderQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: EncoderQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        session = backend.session
        model = offer.model(session.max_length, capabilities=_capabilities(session))
        if isinstance(session, FillMaskSession):
            return model, [fill_mask.routes(backend, session, model.admit)]
        if isinstance(session, QuestionAnsweringSession):
            return model, [question_answering.routes(backend, session, model.admit)]
        if isinstance(session, MultipleChoiceSession):
            return model, [multiple_choice.routes(backend, session, model.admit)]
        routers = [scores.routes(API, backend, model.admit)]
        if isinstance(session, EmbeddingSession) and not session.has_states:
            routers.append(cohere.routes(backend, session, model.admit))
            routers.append(embeddings.routes(API, backend, session, model.admit))
            routers.append(ollama.routes(backend, session, model))
        if isinstance(session, SparseEmbeddingSession):
            routers.append(sparse_embeddings.routes(backend, session, model.admit))
        if isinstance(session, TokenClassificationSession):
            routers.append(entities.routes(backend, session, model.admit))
        return model, routers


def _capabilities(session: EncoderSession) -> tuple[str, ...]:
    """Return the capabilities of a text encoder."""
    if isinstance(session, EmbeddingSession):
        return ("rerank",) if session.has_states else ("embedding", "rerank")
    if isinstance(session, SparseEmbeddingSession):
        return ("rerank",)
    if isinstance(session, TextClassificationSession):
        return ("classification",) if len(session.labels) > 1 else ("rerank", "classification")
    return ()
