# SPDX-License-Identifier: Apache-2.0
"""ConvNeXt V2, `transformers.models.convnextv2`: facebook/convnextv2-tiny-22k-224 and others.

Unusual: a channel's response is normalized by those of all, in place of layer scale.
"""

from dataclasses import replace

from .convnext import RECIPE as CONVNEXT

RECIPE = replace(
    CONVNEXT,
    model_type="convnextv2",
    architectures=("ConvNextV2Model", "ConvNextV2ForImageClassification"),
    special="ConvNeXt whose channels' responses are normalized by those of all.",
)
