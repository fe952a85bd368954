# SPDX-License-Identifier: Apache-2.0
"""Service of depth estimation: depths of images."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import Offer
from qeff_zoo.tasks.depth_estimation import endpoints
from qeff_zoo.tasks.depth_estimation.endpoints import DepthQueue


class DepthMaps:
    """Depths of images."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[DepthQueue]:
        """Return a context manager that opens a queue."""
        return closing(DepthQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: DepthQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        model = offer.model(0, capabilities=("depth", "vision"))
        return model, [endpoints.routes(backend, model.check)]
