# SPDX-License-Identifier: Apache-2.0
"""Service of speech recognition: transcriptions and translations of recordings."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import API, Offer
from qeff_zoo.tasks.speech import endpoints
from qeff_zoo.tasks.speech.endpoints import SpeechQueue


class Transcriptions:
    """Transcriptions and translations of recordings."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[SpeechQueue]:
        """Return a context manager that opens a queue."""
        return closing(SpeechQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: SpeechQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        model = offer.model(0, capabilities=("transcription",))
        return model, [endpoints.routes(API, backend, model.check)]
