# SPDX-License-Identifier: Apache-2.0
"""Runtime: sessions and the engine that run packages, without torch and transformers.

What is named here is imported when it is first used: who writes texts does not wait for what reads pictures.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff_zoo.runtime.answers import Delta, Request
    from qeff_zoo.runtime.ctc_session import CtcSession
    from qeff_zoo.runtime.disaggregated import Prefills, PrefillServer
    from qeff_zoo.runtime.engine import Engine, Handle, Stats
    from qeff_zoo.runtime.feature_extraction import EmbeddingSession
    from qeff_zoo.runtime.grammar import Grammar
    from qeff_zoo.runtime.image_to_text import ImageToTextSession
    from qeff_zoo.runtime.images import ImageClassificationSession, ImageEmbeddingSession
    from qeff_zoo.runtime.labels import Score
    from qeff_zoo.runtime.metrics import Metrics
    from qeff_zoo.runtime.prefix_cache import PrefixCacheOptions
    from qeff_zoo.runtime.sampling import Sampling, TokenLogprobs
    from qeff_zoo.runtime.sessions import Session, open_session
    from qeff_zoo.runtime.speech_results import Segment, TimedText, Transcription
    from qeff_zoo.runtime.speech_seq2seq import SpeechSeq2SeqSession
    from qeff_zoo.runtime.text2text_generation import Text2TextSession
    from qeff_zoo.runtime.text_classification import Classification, TextClassificationSession
    from qeff_zoo.runtime.text_generation import Generation, TextGenerationSession
    from qeff_zoo.runtime.token_classification import TokenClassificationSession, TokenLabel
    from qeff_zoo.runtime.transcription_options import FALLBACK, TranscriptionOptions
    from qeff_zoo.runtime.zero_shot_session import ZeroShotSession

__all__ = [
    "FALLBACK",
    "Classification",
    "Delta",
    "EmbeddingSession",
    "Engine",
    "Generation",
    "Grammar",
    "Handle",
    "ImageClassificationSession",
    "ImageEmbeddingSession",
    "ImageToTextSession",
    "LabelledSpeechSession",
    "Metrics",
    "PrefillServer",
    "Prefills",
    "PrefixChoices",
    "Request",
    "Sampling",
    "Score",
    "Segment",
    "Session",
    "SpeechChoices",
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
    "ZeroShotSession",
    "open_session",
]

_PLACES = {
    "answers": ("Delta", "Request"),
    "engine": ("Engine", "Handle", "Stats"),
    "feature_extraction": ("EmbeddingSession",),
    "grammar": ("Grammar",),
    "handoff": ("Prefills", "PrefillServer"),
    "image_to_text": ("ImageToTextSession",),
    "images": ("ImageClassificationSession", "ImageEmbeddingSession"),
    "labels": ("Score",),
    "matching": ("ZeroShotSession",),
    "metrics": ("Metrics",),
    "prefix_cache": ("PrefixChoices",),
    "sampling": ("Sampling", "TokenLogprobs"),
    "sessions": ("Session", "open_session"),
    "speech_choices": ("FALLBACK", "TranscriptionOptions"),
    "speech_results": ("Segment", "TimedText", "Transcription"),
    "speech_seq2seq": ("SpeechSeq2SeqSession",),
    "text2text_generation": ("Text2TextSession",),
    "text_classification": ("Classification", "TextClassificationSession"),
    "text_generation": ("Generation", "TextGenerationSession"),
    "token_classification": ("TokenClassificationSession", "TokenLabel"),
    "transcribing": ("LabelledSpeechSession",),
}


def __getattr__(name: str) -> Any:
    """Import what is used for the first time."""
    for module, names in _PLACES.items():
        if name in names:
            found = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
