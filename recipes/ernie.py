# SPDX-License-Identifier: Apache-2.0
"""ERNIE 1.0 to 3.0, `transformers.models.ernie`: BERT with a task embedding; the task is 0."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="ernie",
    architectures=(
        "ErnieModel",
        "ErnieForMaskedLM",
        "ErnieForPreTraining",
        "ErnieForSequenceClassification",
        "ErnieForTokenClassification",
        "ErnieForQuestionAnswering",
        "ErnieForMultipleChoice",
    ),
    special="BERT with a task embedding, of which the first is used.",
    tiny=(
        Tiny(config={**BERT.tiny[0].config, "use_task_id": True, "task_type_vocab_size": 3}),
        Tiny(config={**BERT.tiny[0].config, "use_task_id": False}, name="no_task"),
    ),
)
