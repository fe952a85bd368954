# SPDX-License-Identifier: Apache-2.0
"""Molmo 2, `transformers.models.molmo2`: overlapping crops of a picture, and Qwen 3 or OLMo 3 as one class."""

from dataclasses import replace

from qeff_zoo.multimodal.families.molmo2 import Molmo2
from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA
from .llava import RECIPE as LLAVA

_START = "image_start_token_id"
_AROUND = (f"low_res_{_START}", _START, "image_col_id", "image_end_token_id")
_FRAME = ("frame_start_token_id", "frame_end_token_id")
_WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "initializer_range": 0.2}
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
_TOWER = {**_WIDTHS, **_HEADS, "num_hidden_layers": 3, "image_size": [12, 12], "patch_size": 4}
_ROWS = {**_WIDTHS, **_HEADS, "vision_feature_layer": [-1, 0], "text_hidden_size": 64}
_IDS = {name: 257 + place for place, name in enumerate(("image_patch_id", *_AROUND, *_FRAME))}
_PARTS = {"vision_config": _TOWER, "adapter_config": _ROWS, **_IDS}
_BASE = {**LLAMA.tiny[0].config, "additional_vocab_size": 7}
_OLMO = {**_BASE, "qk_norm_type": "olmo", "norm_after": True, "rope_scaling_layers": [1, 3]}
_SIZES = {"size": {"height": 12, "width": 12}, "patch_size": 4, "overlap_margins": [1, 1]}
_CROPS = {"image_processor_type": "Molmo2ImageProcessor", **_SIZES, "max_crops": 3}

RECIPE = replace(
    LLAVA,
    model_type="molmo2",
    architectures=("Molmo2ForConditionalGeneration",),
    special="Rows of patches of overlapping crops are added to embeddings; tokens of all pictures see one another.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    images=Molmo2(
        video="<|video|>", video_processor="Molmo2VideoProcessor", stamp=("{:.1f} ", "", " ")
    ),
    tiny=tuple(
        Tiny(name=name, config={"text_config": text, **_PARTS}, image_processor=_CROPS)
        for name, text in (("base", _BASE), ("olmo", _OLMO))
    ),
)
