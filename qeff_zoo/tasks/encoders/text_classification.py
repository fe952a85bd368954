# SPDX-License-Identifier: Apache-2.0
"""The `text-classification` contract: a score of every label for each text, or pair of texts.

IN   input_ids, attention_mask, and token_type_ids for models with token types: see
`qeff_zoo.tasks.encoders.whole_texts`
OUT  logits (batch_size, labels)

Decoders pool the last token whose id is not `pad_token_id`; so padding must be that token.
"""

import warnings
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import TEXT_CLASSIFICATION, Tracing, find, lazy
from qeff_zoo.contract.comparison import SCORES
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe

from . import whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint
    from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import CrossEncoder


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.tasks.encoders.classification_tracing import Classify

    token_types = whole_texts.takes_token_types(model)
    return whole_texts.describe(model, Classify(model), "logits", token_types=token_types)


def problems(checkpoint: "Checkpoint", encoder: "CrossEncoder", output: str) -> list[str]:
    """Return why a CrossEncoder cannot be built as it is, one sentence each.

    Args:
        checkpoint: Checkpoint of the model.
        encoder: Settings of the CrossEncoder.
        output: Value of `transformer_task` whose scores the task computes.
    """
    from qeff_zoo.checkpoint.sentence_transformers.files import reader_of
    from qeff_zoo.checkpoint.sentence_transformers.settings import read_settings
    from qeff_zoo.runtime import activations, labels

    vocab_size = int(checkpoint.text_config.get("vocab_size") or 0)
    reasons = [
        f"{checkpoint.name!r}: {problem}." for problem in encoder.problems(vocab_size, output)
    ]
    settings = read_settings(reader_of(checkpoint.companions))
    if encoder.modules and settings.default_prompt not in (None, *settings.prompts):
        reasons.append(
            f"{checkpoint.name!r}: `default_prompt_name` of its CrossEncoder is {settings.default_prompt!r}; expected "
            f"one of its `prompts`, {', '.join(map(repr, settings.prompts))}."
        )
    if encoder.activation and activations.find(encoder.activation) is None:
        reasons.append(labels.unsupported(encoder.activation))
    if encoder.foreign:
        warnings.warn(
            f"{checkpoint.name!r} saves the activation {encoder.foreign!r}, which is no class of torch, so that "
            "sentence-transformers computes scores with the default one. So does the package.",
            stacklevel=2,
        )
    return reasons


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import read_cross_encoder

    encoder = read_cross_encoder(checkpoint.companions)
    reasons = problems(checkpoint, encoder, "sequence-classification") if encoder else []
    decodes = find(recipe.task).role == "decoder"
    if not decodes or checkpoint.config.get("pad_token_id") is not None:
        return reasons
    return [
        *reasons,
        f"{checkpoint.name!r} has no pad_token_id in config.json, and a decoder classifies by the last token that "
        f"is not padding. Expected one; set it to the id that its tokenizer pads with.",
    ]


TASK = whole_texts.task_of(
    name=TEXT_CLASSIFICATION,
    does="classify texts and text pairs",
    guide="embeddings.md",
    noun="Classification",
    verb="ClassifyTexts",
    options=("pair", "prompt_name"),
    comparison=SCORES,
    auto_classes=("AutoModelForSequenceClassification",),
    suffixes=("ForSequenceClassification",),
    tracing=_tracing,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.encoders.text_classification_session:TextClassificationSession"),
    public=(
        "qeff_zoo.tasks.encoders.text_classification_session:Classification",
        "qeff_zoo.tasks.encoders.text_classification_session:TextClassificationSession",
    ),
    vllm_task="classify",
)
