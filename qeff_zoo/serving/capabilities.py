# SPDX-License-Identifier: Apache-2.0
"""Capabilities of served models for clients that offer what a model can do: the page at `/`, and those of ollama's API.

chat            messages of several turns
completion      a text that the model continues
captioning      one message with one image
vision, video, audio    images, videos and recordings beside text
tools, thinking         calls of functions, and reasoning apart from the answer
embedding, rerank, classification    vectors of texts, scores of pairs, labels of texts
embedding with vision, matching      vectors of images, and their similarity with texts
transcription   texts of recordings
"""

from typing import cast

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import ImageEmbeddingSession, TextGenerationSession
from qeff_zoo.runtime.chat_output import ChatFormat
from qeff_zoo.serving.tools import ChatFormats
from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
from qeff_zoo.tasks.encoders.session import EncoderSession
from qeff_zoo.tasks.encoders.sparse_embedding_session import SparseEmbeddingSession
from qeff_zoo.tasks.encoders.text_classification_session import TextClassificationSession
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession

_OF_FILES = {"images": "vision", "videos": "video", "audio": "audio"}


def of_generation(session: TextGenerationSession, formats: ChatFormats) -> tuple[str, ...]:
    """Return the capabilities of a model that generates.

    Args:
        session: Session of the model.
        formats: Formats of its chats.
    """
    if session.describes_images:
        return ("captioning", "vision")
    if session.chat_template is None:
        return ("completion",)
    try:
        known = formats.of(session.chat_template.source())
    except GenerationError:  # several templates without a default one
        known = ChatFormat()
    found = {
        "tools": known.takes_tools and known.calls is not None,
        "thinking": known.has_parts,
    }
    files = [name for argument, name in _OF_FILES.items() if argument in session.takes]
    if "video" in files and not _reads_videos(session):
        files.remove("video")
    return ("chat", "completion", *files, *(name for name, holds in found.items() if holds))


def _reads_videos(session: TextGenerationSession) -> bool:
    try:
        cast("ImageTextToTextSession", session).check_reads_videos()
    except GenerationError:
        return False
    return True


def of_texts(session: EncoderSession) -> tuple[str, ...]:
    """Return the capabilities of a text encoder."""
    if isinstance(session, EmbeddingSession):
        return ("rerank",) if session.has_states else ("embedding", "rerank")
    if isinstance(session, SparseEmbeddingSession):
        return ("rerank",)
    if isinstance(session, TextClassificationSession):
        return ("classification",) if len(session.labels) > 1 else ("rerank", "classification")
    return ()


def of_images(session: ImageEmbeddingSession) -> tuple[str, ...]:
    """Return the capabilities of an image encoder."""
    return ("embedding", "vision", *(("matching",) if session.reads_texts else ()))
