# SPDX-License-Identifier: Apache-2.0
"""Service of text to image: OpenAI's and Hugging Face's endpoints of images."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import API, Offer
from qeff_zoo.tasks.diffusion import endpoints
from qeff_zoo.tasks.diffusion.endpoints import DrawingQueue


class Drawings:
    """Images of texts, and changes of images."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings: those of a package with an encoder of images."""
        return "vae_encoder" in session.programs

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[DrawingQueue]:
        """Return a context manager that opens a queue."""
        return closing(DrawingQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: DrawingQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        model = offer.model(0, capabilities=("image-generation",))
        return model, [endpoints.routes(API, backend, model)]
