# SPDX-License-Identifier: Apache-2.0
"""Molmo of Ai2 (arXiv 2409.17146), `molmo`, as in allenai/Molmo-7B-D-0924, 7B-O and 72B: close to Molmo 2.

The vision encoder is CLIP's, with a class token that is dropped and a norm before its layers; learned vectors are added
to features of patches that are padding, whole or in part; attention is causal for image tokens, too; and queries and
keys have norms only as in OLMo 2. `multimodal/own_forms.py` maps the config.
"""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.backbone_utils import filter_output_hidden_states
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    Split,
    WeightConverter,
    WeightRenaming,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.molmo2 import configuration_molmo2 as configs
from transformers.models.molmo2 import modeling_molmo2 as molmo2
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

#: Places in a layer of the language model, by name in a checkpoint.
_NAMES = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "attn_out": "self_attn.o_proj",
    "ff_out": "mlp.down_proj",
}


class MolmoTextConfig(configs.Molmo2TextConfig):
    """Molmo 2's config of the language model.

    Args:
        qk_norm: Whether queries and keys have norms, over all heads as in OLMo 2.
    """

    model_type = "molmo_text"
    qk_norm: bool = False
    qk_norm_type: str = "olmo"


class MolmoVisionConfig(configs.Molmo2VisionConfig):
    """Molmo 2's config of the vision encoder; `num_position_embeddings` does not count the class token."""

    model_type = "molmo_vision"
    hidden_act: str = "quick_gelu"


class MolmoConfig(configs.Molmo2Config):
    """Molmo 2's config with the one kind of token that begins an image.

    Args:
        image_col_id: Id of the token that ends each row of image tokens.
    """

    model_type = "molmo"
    sub_configs_defaults: ClassVar[Any] = {
        "text_config": MolmoTextConfig,
        "vision_config": MolmoVisionConfig,
        "adapter_config": configs.Molmo2AdapterConfig,
    }
    image_col_id: int = 152067


class MolmoVisionModel(molmo2.Molmo2VisionModel):
    """CLIP's vision encoder of flat patches.

    Args:
        config: Config of the vision encoder.
    """

    config: MolmoVisionConfig

    def __init__(self, config: MolmoVisionConfig) -> None:
        super().__init__(config)
        width, values = config.hidden_size, config.patch_size**2 * config.num_channels
        positions: Any = config.num_position_embeddings
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros(positions + 1, width))
        self.patch_embedding = nn.Linear(values, width, bias=False)
        self.pre_ln = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.post_init()  # type: ignore[no-untyped-call]

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs(tie_last_hidden_states=False)  # type: ignore[untyped-decorator]
    def forward(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """Return the features of the class token and the patches of each crop."""
        patches = self.patch_embedding(pixel_values.to(self.dtype))
        first = self.class_embedding.expand(patches.shape[0], 1, -1)
        hidden_states = self.pre_ln(torch.cat([first, patches], 1) + self.positional_embedding)
        for layer in self.layers:
            hidden_states = layer(hidden_states, None, **kwargs)
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states)


class MolmoTextModel(molmo2.Molmo2TextModel):
    """Molmo 2's language model, whose queries and keys may have no norms.

    Args:
        config: Config of the language model.
    """

    config: MolmoTextConfig

    def __init__(self, config: MolmoTextConfig) -> None:
        super().__init__(config)
        if not config.qk_norm:
            for layer in self.layers:
                attention: Any = layer.self_attn
                attention.q_norm = attention.k_norm = nn.Identity()


class MolmoModel(molmo2.Molmo2Model):
    """Molmo 2's model with the parts of Molmo.

    Args:
        config: Config of the model.
    """

    config: MolmoConfig
    config_class = MolmoConfig

    def __init__(self, config: MolmoConfig) -> None:
        super().__init__(config)
        vision, adapter, text = cast(
            Any, (config.vision_config, config.adapter_config, config.text_config)
        )
        self.vision_tower = MolmoVisionModel(vision)
        self.language_model = MolmoTextModel(text)
        width = len(adapter.vision_feature_layer) * vision.hidden_size
        #: Vectors for patches of padding alone, and for those with some.
        self.pad_embed = nn.Parameter(torch.zeros(2, width))
        self.post_init()  # type: ignore[no-untyped-call]

    @can_return_tuple  # type: ignore[untyped-decorator]
    @filter_output_hidden_states  # type: ignore[untyped-decorator]
    def get_image_features(
        self,
        pixel_values: Tensor,
        image_token_pooling: Tensor,
        image_grids: Tensor,
        image_masks: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling:
        """Return the features of the tokens of each image, `pooler_output`.

        Args:
            pixel_values: Patches of all crops, (crops, patches, values).
            image_token_pooling: Patches that are pooled into each image token, counted over all crops.
            image_grids: Rows and columns of image tokens of each whole image and its canvas.
            image_masks: Share of each patch that is no padding, (crops, patches).
            **kwargs: Arguments of the vision encoder.
        """
        outputs: Any = self.vision_tower(pixel_values, **kwargs)
        states, adapter = outputs.hidden_states, cast(Any, self.config.adapter_config)
        layers = adapter.vision_feature_layer
        taken = [states[layer + 1 if layer >= 0 else layer] for layer in layers]
        features = torch.cat(taken, -1)[:, 1:]  # without the class token
        if image_masks is not None:
            empty = image_masks == 0
            partial = (image_masks < 1) & ~empty
            kinds = torch.stack([empty, partial], -1).to(features.dtype)
            features = features + kinds @ self.pad_embed
        pooled = self.multi_modal_projector(features, image_token_pooling).last_hidden_state
        whole, canvas = image_grids[:, :2].prod(1), image_grids[:, 2:].prod(1)
        outputs.pooler_output = torch.split(pooled, (whole + canvas).tolist())
        return cast(BaseModelOutputWithPooling, outputs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        image_token_pooling: Tensor | None = None,
        image_grids: Tensor | None = None,
        image_masks: Tensor | None = None,
        mm_encoder_outputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the hidden states of a prompt; features are added to image tokens, see `get_image_features`."""
        if pixel_values is not None:
            features = self.get_image_features(
                pixel_values, image_token_pooling, image_grids, image_masks
            )
            mm_encoder_outputs = {"image": features}
        return super().forward(input_ids, mm_encoder_outputs=mm_encoder_outputs, **kwargs)


class MolmoForCausalLM(molmo2.Molmo2ForConditionalGeneration):
    """Logits on `MolmoModel`.

    Args:
        config: Config of the model.
    """

    config: MolmoConfig
    config_class = MolmoConfig

    def __init__(self, config: MolmoConfig) -> None:
        super().__init__(config)
        self.model = MolmoModel(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        image_token_pooling: Tensor | None = None,
        image_grids: Tensor | None = None,
        image_masks: Tensor | None = None,
        mm_encoder_outputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the logits of a prompt; see `MolmoModel`."""
        images = {
            "pixel_values": pixel_values,
            "image_token_pooling": image_token_pooling,
            "image_grids": image_grids,
            "image_masks": image_masks,
        }
        return super().forward(input_ids, mm_encoder_outputs=mm_encoder_outputs, **images, **kwargs)


def register() -> None:
    """Register config, model and names of weights with transformers."""
    AutoConfig.register("molmo", MolmoConfig, exist_ok=True)
    AutoModelForImageTextToText.register(MolmoConfig, MolmoForCausalLM, exist_ok=True)
    own = [
        WeightRenaming(r"^model\.transformer\.ff_out\.", "lm_head."),
        WeightRenaming(r"^model\.vision_backbone\.pad_embed", "model.pad_embed"),
    ]
    mapping = [*own, *get_checkpoint_conversion_mapping("molmo2")]
    register_checkpoint_conversion_mapping("molmo", mapping, overwrite=True)
    projections = [f"self_attn.{letter}_proj" for letter in "qkv"]
    halves = [f"mlp.{one}_proj.weight" for one in ("up", "gate")]
    embeddings = ["wte.embedding", "wte.new_embedding"]
    text: list[WeightConverter | WeightRenaming] = [
        *(WeightRenaming(rf"\.{name}\.", f".{place}.") for name, place in _NAMES.items()),
        WeightConverter("att_proj", projections, [Split(dim=0)]),
        WeightConverter("ff_proj.weight", halves, [Chunk(dim=0)]),
        WeightConverter(embeddings, "embed_tokens.weight", [Concatenate(dim=0)]),
    ]
    register_checkpoint_conversion_mapping("MolmoTextModel", text, overwrite=True)
