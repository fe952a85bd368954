# SPDX-License-Identifier: Apache-2.0
"""LUKE and mLUKE, `transformers.models.luke`, on words alone: entities are an input that texts do not have."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .roberta import RECIPE as ROBERTA

RECIPE = replace(
    ROBERTA,
    model_type="luke",
    architectures=(
        "LukeModel",
        "LukeForMaskedLM",
        "LukeForSequenceClassification",
        "LukeForTokenClassification",
        "LukeForQuestionAnswering",
        "LukeForMultipleChoice",
    ),
    special="Plain RoBERTa, as long as no entities are given: they are not read.",
    tiny=(Tiny(config={**ROBERTA.tiny[0].config, "entity_vocab_size": 11, "entity_emb_size": 16}),),
)
