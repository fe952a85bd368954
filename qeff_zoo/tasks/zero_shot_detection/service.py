# SPDX-License-Identifier: Apache-2.0
"""Service of zero-shot object detection: objects in images that texts name."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import Offer
from qeff_zoo.tasks.zero_shot_detection import endpoints
from qeff_zoo.tasks.zero_shot_detection.endpoints import NamedDetectionQueue


class NamedDetections:
    """Objects in images that texts name."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(
        self, session: Any, choices: ServerOptions
    ) -> AbstractContextManager[NamedDetectionQueue]:
        """Return a context manager that opens a queue."""
        return closing(NamedDetectionQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: NamedDetectionQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        model = offer.model(0, capabilities=("detection", "vision"))
        return model, [endpoints.routes(backend, model.check)]
