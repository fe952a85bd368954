# SPDX-License-Identifier: Apache-2.0
"""Running a package for target `ort`: numpy, onnxruntime, tokenizers and jinja2, neither torch nor transformers."""

from qeff_zoo.runtime.feature_extraction import EmbeddingSession
from qeff_zoo.runtime.labels import Score
from qeff_zoo.runtime.sessions import Session, open_session
from qeff_zoo.runtime.text_classification import Classification, TextClassificationSession
from qeff_zoo.runtime.text_generation import (
    Generation,
    Metrics,
    TextGenerationSession,
)
from qeff_zoo.runtime.token_classification import TokenClassificationSession, TokenLabel

__all__ = [
    "Classification",
    "EmbeddingSession",
    "Generation",
    "Metrics",
    "Score",
    "Session",
    "TextClassificationSession",
    "TextGenerationSession",
    "TokenClassificationSession",
    "TokenLabel",
    "open_session",
]
