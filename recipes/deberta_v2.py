# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v2 and v3, mDeBERTa and others, `transformers.models.deberta_v2`.

Unusual: scores have content-to-position and position-to-content terms, by distance bucket; v2 also has a
convolution beside its first layer. None of it goes through transformers' attention interface.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

_TINY = {
    **BERT.tiny[0].config,
    "relative_attention": True,
    "position_buckets": 6,
    "max_relative_positions": -1,
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}

_CONVOLUTIONAL = {"share_att_key": False, "position_biased_input": True, "conv_act": "gelu"}
_SIZES = {"embedding_size": 48, "conv_kernel_size": 3}

RECIPE = replace(
    BERT,
    model_type="deberta-v2",
    architectures=(
        *("DebertaV2Model", "DebertaV2ForMaskedLM"),
        *("DebertaV2ForSequenceClassification", "DebertaV2ForTokenClassification"),
        *("DebertaV2ForQuestionAnswering", "DebertaV2ForMultipleChoice"),
    ),
    special="Disentangled attention: content to content, to position and back, with distances in logarithmic buckets.",
    tiny=(
        Tiny(config={**_TINY, "norm_rel_ebd": "layer_norm"}),
        Tiny(config={**_TINY, **_CONVOLUTIONAL, **_SIZES}, name="conv"),
    ),
)
