# SPDX-License-Identifier: Apache-2.0
"""Service of embeddings of chats with images."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import API, Offer
from qeff_zoo.tasks.multimodal import embedding_endpoints
from qeff_zoo.tasks.multimodal.embedding_endpoints import PromptQueue


class PromptEmbeddings:
    """Embeddings of chats with images."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[PromptQueue]:
        """Return a context manager that opens a queue."""
        return closing(PromptQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: PromptQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        ctx_len = backend.session.decoder.sizes.ctx_len
        model = offer.model(ctx_len, capabilities=("embedding", "vision"))
        return model, [embedding_endpoints.routes(API, backend, model.admit, offer.image_hosts)]
