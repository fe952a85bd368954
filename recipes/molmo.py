# SPDX-License-Identifier: Apache-2.0
"""Molmo 7B-D, 7B-O and 72B, `qeff_zoo.export.architectures.molmo`: Molmo 2 with CLIP's vision encoder."""

from dataclasses import replace

from qeff_zoo.multimodal import own_forms
from qeff_zoo.multimodal.families.molmo import Molmo
from qeff_zoo.recipe import Tiny, rms_norm

from .molmo2 import RECIPE as MOLMO2

_MOLMO2 = MOLMO2.tiny[0].config
_CONFIG = {
    **_MOLMO2,
    "vision_config": {
        **_MOLMO2["vision_config"],
        "hidden_act": "quick_gelu",
        "image_size": [16, 16],
    },
    "text_config": {**_MOLMO2["text_config"], "attention_bias": True},
}
_OLMO_TEXT = {**_CONFIG["text_config"], "attention_bias": False, "qk_norm": True}
_IMAGE_PROCESSOR = {
    "image_processor_type": "MolmoImageProcessor",
    "size": {"height": 16, "width": 16},
    "patch_size": 4,
    "overlap_margins": [2, 0],
    "max_crops": 3,
}


RECIPE = replace(
    MOLMO2,
    model_type="molmo",
    architectures=("MolmoForCausalLM",),
    special="CLIP's vision encoder, vectors for patches of padding, causal attention; queries and keys without norms.",
    transforms=(rms_norm(lambda config: (2 + 2 * config.qk_norm) * config.num_hidden_layers + 1),),
    images=Molmo(),
    alias=own_forms.molmo,
    tiny=(
        Tiny(config=_CONFIG, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            config={**_CONFIG, "text_config": {**_OLMO_TEXT, "norm_after": True}},
            image_processor=_IMAGE_PROCESSOR,
            name="olmo",
        ),
    ),
)
