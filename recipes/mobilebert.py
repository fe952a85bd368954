# SPDX-License-Identifier: Apache-2.0
"""MobileBERT, `transformers.models.mobilebert`.

Unusual: embeddings of three neighbours, bottlenecks around each layer, several MLPs in it, scales in place of norms.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .bert import RECIPE as BERT

_SIZES = {"embedding_size": 24, "intra_bottleneck_size": 32, "num_feedforward_networks": 2}

RECIPE = replace(
    BERT,
    model_type="mobilebert",
    architectures=(
        "MobileBertModel",
        "MobileBertForMaskedLM",
        "MobileBertForPreTraining",
        "MobileBertForSequenceClassification",
        "MobileBertForTokenClassification",
        "MobileBertForQuestionAnswering",
        "MobileBertForMultipleChoice",
    ),
    special="Embeddings of three neighbouring tokens; bottlenecks around each layer's several MLPs; scales, no norms.",
    transforms=(
        Transform(name="padding", parameters={"names": ["word_embeddings"]}, count=lambda _: 1),
        Transform(name="trigram", count=lambda config: int(config.trigram_input)),
    ),
    tiny=(Tiny(config={**BERT.tiny[0].config, **_SIZES, "initializer_range": 0.1}),),
)
