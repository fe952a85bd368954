# SPDX-License-Identifier: Apache-2.0
"""Service of text to speech: OpenAI's endpoint of speech."""

from contextlib import AbstractContextManager, closing
from typing import Any

from fastapi import APIRouter

from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import API, Offer
from qeff_zoo.tasks.text_to_speech import endpoints
from qeff_zoo.tasks.text_to_speech.endpoints import VoiceQueue


class Voices:
    """Speech of texts."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return False

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[VoiceQueue]:
        """Return a context manager that opens a queue."""
        return closing(VoiceQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: VoiceQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        model = offer.model(backend.session.sizes.seq_lens[-1], capabilities=("speech",))
        return model, [endpoints.routes(API, backend, model)]
