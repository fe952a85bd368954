# SPDX-License-Identifier: Apache-2.0
"""Runtime: sessions and the engine that run packages, without torch and transformers.

Every name is imported on first use, so that text generation does not import the code for images or speech.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff_zoo.runtime.answers import Delta, Request
    from qeff_zoo.runtime.chat_template import ChatOptions
    from qeff_zoo.runtime.disaggregated import Prefills, PrefillServer
    from qeff_zoo.runtime.engine import Engine, Handle, Stats, stream_deltas
    from qeff_zoo.runtime.grammar import Grammar
    from qeff_zoo.runtime.labels import Score
    from qeff_zoo.runtime.llama_samplers import Dry, Mirostat, Xtc
    from qeff_zoo.runtime.metrics import Metrics
    from qeff_zoo.runtime.prefix_cache import PrefixCacheOptions
    from qeff_zoo.runtime.sampling import Sampling, TokenLogprobs
    from qeff_zoo.runtime.sessions import Session, open_session
    from qeff_zoo.runtime.text_generation import Generation, TextGenerationSession
    from qeff_zoo.tasks.encoder_decoder.image_to_text_session import ImageToTextSession
    from qeff_zoo.tasks.encoder_decoder.text2text_session import Text2TextSession
    from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
    from qeff_zoo.tasks.encoders.entities import Entity
    from qeff_zoo.tasks.encoders.sparse_embedding_session import (
        SparseEmbedding,
        SparseEmbeddingSession,
    )
    from qeff_zoo.tasks.encoders.text_classification_session import (
        Classification,
        TextClassificationSession,
    )
    from qeff_zoo.tasks.encoders.token_classification_session import (
        TokenClassificationSession,
        TokenLabel,
    )
    from qeff_zoo.tasks.images.session import ImageClassificationSession, ImageEmbeddingSession
    from qeff_zoo.tasks.images.zero_shot_session import ZeroShotSession
    from qeff_zoo.tasks.speech.ctc_session import CtcSession
    from qeff_zoo.tasks.speech.seq2seq_session import SpeechSeq2SeqSession
    from qeff_zoo.tasks.speech.speech_results import Segment, TimedText, Transcription
    from qeff_zoo.tasks.speech.transcription_options import (
        TEMPERATURE_FALLBACK,
        TranscriptionOptions,
    )

__all__ = [
    "TEMPERATURE_FALLBACK",
    "ChatOptions",
    "Classification",
    "CtcSession",
    "Delta",
    "Dry",
    "EmbeddingSession",
    "Engine",
    "Entity",
    "Generation",
    "Grammar",
    "Handle",
    "ImageClassificationSession",
    "ImageEmbeddingSession",
    "ImageToTextSession",
    "Metrics",
    "Mirostat",
    "PrefillServer",
    "Prefills",
    "PrefixCacheOptions",
    "Request",
    "Sampling",
    "Score",
    "Segment",
    "Session",
    "SparseEmbedding",
    "SparseEmbeddingSession",
    "SpeechSeq2SeqSession",
    "Stats",
    "Text2TextSession",
    "TextClassificationSession",
    "TextGenerationSession",
    "TimedText",
    "TokenClassificationSession",
    "TokenLabel",
    "TokenLogprobs",
    "Transcription",
    "TranscriptionOptions",
    "Xtc",
    "ZeroShotSession",
    "open_session",
    "stream_deltas",
]

_RUNTIME, _TASKS = "qeff_zoo.runtime", "qeff_zoo.tasks"
_PLACES = {
    f"{_RUNTIME}.answers": ("Delta", "Request"),
    f"{_RUNTIME}.chat_template": ("ChatOptions",),
    f"{_RUNTIME}.engine": ("Engine", "Handle", "Stats", "stream_deltas"),
    f"{_RUNTIME}.grammar": ("Grammar",),
    f"{_RUNTIME}.disaggregated": ("Prefills", "PrefillServer"),
    f"{_RUNTIME}.labels": ("Score",),
    f"{_RUNTIME}.llama_samplers": ("Dry", "Mirostat", "Xtc"),
    f"{_RUNTIME}.metrics": ("Metrics",),
    f"{_RUNTIME}.prefix_cache": ("PrefixCacheOptions",),
    f"{_RUNTIME}.sampling": ("Sampling", "TokenLogprobs"),
    f"{_RUNTIME}.sessions": ("Session", "open_session"),
    f"{_RUNTIME}.text_generation": ("Generation", "TextGenerationSession"),
    f"{_TASKS}.encoder_decoder.image_to_text_session": ("ImageToTextSession",),
    f"{_TASKS}.encoder_decoder.text2text_session": ("Text2TextSession",),
    f"{_TASKS}.encoders.embedding_session": ("EmbeddingSession",),
    f"{_TASKS}.encoders.sparse_embedding_session": ("SparseEmbedding", "SparseEmbeddingSession"),
    f"{_TASKS}.encoders.entities": ("Entity",),
    f"{_TASKS}.encoders.text_classification_session": (
        "Classification",
        "TextClassificationSession",
    ),
    f"{_TASKS}.encoders.token_classification_session": ("TokenClassificationSession", "TokenLabel"),
    f"{_TASKS}.images.session": ("ImageClassificationSession", "ImageEmbeddingSession"),
    f"{_TASKS}.images.zero_shot_session": ("ZeroShotSession",),
    f"{_TASKS}.speech.ctc_session": ("CtcSession",),
    f"{_TASKS}.speech.seq2seq_session": ("SpeechSeq2SeqSession",),
    f"{_TASKS}.speech.speech_results": ("Segment", "TimedText", "Transcription"),
    f"{_TASKS}.speech.transcription_options": ("TEMPERATURE_FALLBACK", "TranscriptionOptions"),
}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    for module, names in _PLACES.items():
        if name in names:
            found = getattr(import_module(module), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
