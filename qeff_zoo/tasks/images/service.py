# SPDX-License-Identifier: Apache-2.0
"""Service of image encoders: embeddings of images, and of texts that are matched with them."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import API, Offer
from qeff_zoo.tasks.images import endpoints
from qeff_zoo.tasks.images.endpoints import ImageQueue


class ImageEmbeddings:
    """Embeddings of images, and of texts that are matched with them."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[ImageQueue]:
        """Return a context manager that opens a queue."""
        return closing(ImageQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: ImageQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        session = backend.session
        model = offer.model(
            getattr(session, "max_length", 0),
            capabilities=(
                "embedding",
                "vision",
                *(("matching",) if session.reads_texts else ()),
            ),
        )
        return model, [endpoints.routes(API, backend, model.admit, offer.image_hosts)]
