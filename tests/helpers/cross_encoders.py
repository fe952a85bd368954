# SPDX-License-Identifier: Apache-2.0
"""CrossEncoders that sentence-transformers makes and saves, and what it predicts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parity import TOLERANCE, noise_of
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from torch import nn

QUERY = "which fox?"
DOCUMENTS = [
    "the quick brown fox",
    "a text of words that are there twice or thrice",
    "ähnlich 你好",
    "",
]
PAIRS = [(QUERY, document) for document in DOCUMENTS]
LONG = "the quick brown fox jumps over " * 9
#: A template as that of published rerankers: the prompt, the query and the document in a user's message.
TEMPLATE = (
    "<s>[judge]{% set asked = messages | selectattr('role', 'eq', 'system') | list %}"
    "{{ asked[0]CONTENT if asked else 'Is it relevant?' }}"
    "{% for one in messages if one.role in ('query', 'document', 'user') %}<{{ one.role }}>{{ oneCONTENT }}{% endfor %}"
    "</s>?"
)


def template(form: str) -> str:
    """Return the template for messages that are texts ("flat") or lists of parts ("structured")."""
    return TEMPLATE.replace("CONTENT", ".content" if form == "flat" else ".content[0].text")


def ranker(
    checkpoint: Path, folder: Path, *, form: str = "", false: int | None = 31, **options: Any
) -> Path:
    """Save a language model with LogitScore.

    Args:
        checkpoint: Checkpoint of the language model.
        folder: Made here.
        form: Form of the chat template's messages; empty for pairs as the tokenizer reads them.
        false: Token id whose logit is subtracted.
        options: Arguments of `Transformer`, and of `CrossEncoder`: prompts, default_prompt_name, activation_fn.
    """
    own = {name: options.pop(name) for name in (*_MODEL,) if name in options}
    model = Transformer(str(checkpoint), transformer_task="text-generation", **options)
    if form:
        model.processor.chat_template = template(form)
        model = _with_template(model, checkpoint, folder, form, options)
    else:
        model.processor.chat_template = None
        model.modality_config = {"text": {"method": "forward", "method_output_name": "logits"}}
    scored = LogitScore(true_token_id=30, false_token_id=false)
    CrossEncoder(modules=[model, scored], **own).save_pretrained(str(folder))
    return folder


_MODEL = ("prompts", "default_prompt_name", "activation_fn")


def _with_template(
    model: Transformer, checkpoint: Path, folder: Path, form: str, options: dict[str, Any]
) -> Transformer:
    """Return the model again, whose modalities follow from its template."""
    kwargs = {"chat_template": template(form)}
    found = Transformer(
        str(checkpoint), transformer_task="text-generation", processor_kwargs=kwargs, **options
    )
    assert found.modality_config["message"]["format"] == form
    return found


def classifier(checkpoint: Path, folder: Path, *, prompts: Any = None, **options: Any) -> Path:
    """Save a classifier as a CrossEncoder.

    Args:
        checkpoint: Checkpoint of the classifier.
        folder: Made here.
        prompts: Prompts by name.
        options: Arguments of `CrossEncoder`.
    """
    CrossEncoder(str(checkpoint), prompts=prompts, **options).save_pretrained(str(folder))
    return folder


def modular(
    checkpoint: Path,
    folder: Path,
    *,
    labels: int = 1,
    max_length: int | None = None,
    **options: Any,
) -> Path:
    """Save an encoder whose pooled states dense layers score.

    Args:
        checkpoint: Checkpoint of the encoder.
        folder: Made here.
        labels: Number of scores.
        max_length: Number of tokens to which pairs are truncated.
        options: Arguments of `CrossEncoder`.
    """
    torch.manual_seed(5)
    model = Transformer(str(checkpoint), max_seq_length=max_length)
    size = model.get_embedding_dimension()
    modules = [
        model,
        Pooling(size, pooling_mode="cls"),
        Dense(size, 24, activation_function=torch.nn.GELU()),
        LayerNorm(24),
        Dense(24, labels, activation_function=None, module_output_name="scores"),
    ]
    CrossEncoder(modules=modules, **options).save_pretrained(str(folder))
    return folder


def predicted(
    folder: Path, pairs: Sequence[Any], *, dtype: torch.dtype = torch.float32, **options: Any
) -> Any:
    """Return what sentence-transformers predicts for pairs, each by itself, (pairs, labels)."""
    with torch.no_grad():
        model = CrossEncoder(str(folder), device="cpu").to(dtype)
        found = [model.predict([pair], show_progress_bar=False, **options) for pair in pairs]
    return np.concatenate(found).reshape(len(pairs), -1)


def assert_predicted(got: Any, folder: Path, pairs: Sequence[Any], **options: Any) -> Any:
    """Compare scores with those that sentence-transformers predicts, by its own noise of float32; return the latter."""
    wanted = predicted(folder, pairs, **options)
    # Of logits: an activation hides the noise of all scores but the few that it does not flatten.
    raw = {**options, "activation_fn": nn.Identity()}
    noise = noise_of(
        predicted(folder, pairs, **raw), predicted(folder, pairs, dtype=torch.float64, **raw)
    )
    np.testing.assert_allclose(got, wanted, atol=TOLERANCE["fp32"] * noise, rtol=0)
    return wanted


def scores_of(session: Any, found: Any) -> Any:
    """Return a session's scores in the order of the labels, (texts, labels)."""
    by_label = [{score.label: score.score for score in one.scores} for one in found]
    return np.array([[one[label] for label in session.labels] for one in by_label])


def rewrite(path: Path, **changes: Any) -> None:
    """Set members of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
