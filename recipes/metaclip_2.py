# SPDX-License-Identifier: Apache-2.0
"""MetaCLIP 2, `transformers.models.metaclip_2`: facebook/metaclip-2-worldwide-huge-quickgelu and others.

Unusual: CLIP of 300 languages, whose texts end with the token of XLM-V's tokenizer.
"""

from dataclasses import replace

from .clip import RECIPE as CLIP

RECIPE = replace(
    CLIP,
    model_type="metaclip_2",
    architectures=("MetaClip2Model",),
    special="CLIP of texts in 300 languages.",
)
