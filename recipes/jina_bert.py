# SPDX-License-Identifier: Apache-2.0
"""Jina Embeddings 2 and Jina Reranker 1, `qeff_zoo.export.architectures.jina_bert`: BERT with ALiBi and gated MLPs.

Their config.json has BERT's model_type, and names the class of its code.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

_TINY = {**BERT.tiny[0].config, "feed_forward_type": "geglu"}


def _alias(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    code = f"{config.get('auto_map')} of {config.get('_name_or_path')}"
    return {"qk_norm": "qk-post-norm" in code} if ".JinaBertConfig" in code else None


RECIPE = replace(
    BERT,
    model_type="jina_bert",
    architectures=("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"),
    special="ALiBi in both directions instead of learned positions, gated MLPs; queries and keys may be normalized.",
    alias=_alias,
    tiny=(
        Tiny(config=_TINY),
        Tiny(
            name="code",
            config={**_TINY, "hidden_size": 96, "num_attention_heads": 6, "qk_norm": True},
        ),
    ),
)
