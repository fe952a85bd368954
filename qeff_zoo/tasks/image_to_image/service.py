# SPDX-License-Identifier: Apache-2.0
"""Service of image-to-image models: images for images."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import Offer
from qeff_zoo.tasks.image_to_image import endpoints
from qeff_zoo.tasks.image_to_image.endpoints import ImageToImageQueue


class Reconstructions:
    """Images for images."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(
        self, session: Any, choices: ServerOptions
    ) -> AbstractContextManager[ImageToImageQueue]:
        """Return a context manager that opens a queue."""
        return closing(ImageToImageQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: ImageToImageQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        model = offer.model(0, capabilities=("image", "vision"))
        return model, [endpoints.routes(backend, model.check)]
