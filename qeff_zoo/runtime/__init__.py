# SPDX-License-Identifier: Apache-2.0
"""Running a package for target `ort`: numpy, onnxruntime, tokenizers and jinja2, neither torch nor transformers."""

from qeff_zoo.runtime.answers import Delta, Request
from qeff_zoo.runtime.engine import Engine, Handle, Stats
from qeff_zoo.runtime.feature_extraction import EmbeddingSession
from qeff_zoo.runtime.grammar import Grammar
from qeff_zoo.runtime.handoff import Prefills, PrefillServer
from qeff_zoo.runtime.images import ImageClassificationSession, ImageEmbeddingSession
from qeff_zoo.runtime.labels import Score
from qeff_zoo.runtime.matching import ZeroShotSession
from qeff_zoo.runtime.metrics import Metrics
from qeff_zoo.runtime.prefix_cache import PrefixChoices
from qeff_zoo.runtime.sampling import Sampling, TokenLogprobs
from qeff_zoo.runtime.sessions import Session, open_session
from qeff_zoo.runtime.speech_choices import FALLBACK, SpeechChoices
from qeff_zoo.runtime.speech_results import Segment, TimedText, Transcription
from qeff_zoo.runtime.speech_seq2seq import SpeechSeq2SeqSession
from qeff_zoo.runtime.text2text_generation import Text2TextSession
from qeff_zoo.runtime.text_classification import Classification, TextClassificationSession
from qeff_zoo.runtime.text_generation import Generation, TextGenerationSession
from qeff_zoo.runtime.token_classification import TokenClassificationSession, TokenLabel
from qeff_zoo.runtime.transcribing import LabelledSpeechSession

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
