# SPDX-License-Identifier: Apache-2.0
"""InternVL of OpenGVLab in its own form, `internvl_chat`: transformers' InternVL under other names.

`recipes/internvl_chat.py` maps the config; here are the names of weights, which are those of InternViT's code for the
vision encoder and of transformers for the language model.
"""

from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    InternVLConfig,
    InternVLForConditionalGeneration,
)
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming

_LANGUAGE, _VISION = "model.language_model", "model.vision_tower"
_LAYER, _PROJECTOR = rf"({_VISION}\.encoder\.layer\.\d+)", "model.multi_modal_projector"
#: Places in transformers' model, by name in a checkpoint.
_NAMES = {
    r"^language_model\.lm_head\.": "lm_head.",
    r"^language_model\.model\.": f"{_LANGUAGE}.",
    r"^vision_model\.embeddings\.class_embedding": f"{_VISION}.embeddings.cls_token",
    r"^vision_model\.embeddings\.position_embedding": f"{_VISION}.embeddings.position_embeddings",
    r"^vision_model\.embeddings\.patch_embedding\.": f"{_VISION}.embeddings.patch_embeddings.projection.",
    r"^vision_model\.encoder\.layers\.": f"{_VISION}.encoder.layer.",
    rf"{_LAYER}\.ls1": r"\1.lambda_1",
    rf"{_LAYER}\.ls2": r"\1.lambda_2",
    rf"{_LAYER}\.norm1\.": r"\1.layernorm_before.",
    rf"{_LAYER}\.norm2\.": r"\1.layernorm_after.",
    rf"{_LAYER}\.attn\.proj\.": r"\1.attention.projection_layer.",
    rf"{_LAYER}\.attn\.q_norm\.": r"\1.attention.q_norm.",
    rf"{_LAYER}\.attn\.k_norm\.": r"\1.attention.k_norm.",
    r"^mlp1\.0\.": f"{_PROJECTOR}.layer_norm.",
    r"^mlp1\.1\.": f"{_PROJECTOR}.linear_1.",
    r"^mlp1\.3\.": f"{_PROJECTOR}.linear_2.",
}


class InternVLChatConfig(InternVLConfig):
    """InternVL's config.

    Args:
        ps_version: Order of features when four become one; only that of "v2" is implemented.
    """

    model_type = "internvl_chat"
    ps_version: str = "v2"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        if self.ps_version != "v2":
            raise ValueError(f"ps_version is {self.ps_version!r}, not 'v2'")


class InternVLChatModel(InternVLForConditionalGeneration):
    """InternVL's model."""

    config: InternVLChatConfig
    config_class = InternVLChatConfig


def register() -> None:
    """Register config, model and names of weights with transformers."""
    AutoConfig.register("internvl_chat", InternVLChatConfig, exist_ok=True)
    AutoModelForImageTextToText.register(InternVLChatConfig, InternVLChatModel, exist_ok=True)
    projections = [f"attention.{letter}_proj" for letter in "qkv"]
    mapping: list[WeightConverter | WeightRenaming] = [
        *(WeightRenaming(name, place) for name, place in _NAMES.items()),
        WeightConverter("attn.qkv", projections, [Chunk(dim=0)]),
    ]
    register_checkpoint_conversion_mapping("internvl_chat", mapping, overwrite=True)
