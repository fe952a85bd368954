# SPDX-License-Identifier: Apache-2.0
"""ConvBERT, `transformers.models.convbert`.

Unusual: half of each layer's heads are convolutions whose kernels are computed from the tokens they are applied to.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .bert import RECIPE as BERT

_CONVOLUTION = {"embedding_size": 48, "head_ratio": 2, "conv_kernel_size": 5, "num_groups": 2}

RECIPE = replace(
    BERT,
    model_type="convbert",
    architectures=(
        "ConvBertModel",
        "ConvBertForMaskedLM",
        "ConvBertForSequenceClassification",
        "ConvBertForTokenClassification",
        "ConvBertForQuestionAnswering",
    ),
    special="Half of the heads are convolutions, with a kernel made for each token; grouped MLPs; narrow embeddings.",
    transforms=(
        Transform(
            name="padding",
            parameters={"names": ["depthwise", "conv_out_layer"]},
            count=lambda config: 2 * config.num_hidden_layers,
        ),
    ),
    tiny=(Tiny(config={**BERT.tiny[0].config, **_CONVOLUTION}),),
)
