# SPDX-License-Identifier: Apache-2.0
"""TrOCR, Donut, Nougat, ViT-GPT2, `transformers.models.vision_encoder_decoder`: images in, text out.

Unusual: two models of other architectures, with a projection between them where their widths differ.
"""

from qeff_zoo.recipe import CAPTION_SHAPES, Recipe, SubModels, Tiny, row_positions

from ._tiny_parts import VIT_VISION

_BART_DECODERS = ("trocr", "bart", "mbart")
_ROBERTA_DECODERS = ("roberta", "xlm-roberta")
_VIT = {"model_type": "vit", **VIT_VISION}
_SWIN = {
    "model_type": "donut-swin",
    "image_size": [32, 16],
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "initializer_range": 0.2,
}
_SPECIAL_TOKENS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "vocab_size": 257}
_BART = {
    **_SPECIAL_TOKENS,
    "d_model": 64,
    "decoder_layers": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
    "init_std": 0.2,
}
_GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "initializer_range": 0.2}
_VIT_PROCESSOR = {"image_processor_type": "ViTImageProcessor", "size": 28}

RECIPE = Recipe(
    model_type="vision-encoder-decoder",
    architectures=("VisionEncoderDecoderModel",),
    task="image-to-text",
    special="Any of these encoders of images, any of these decoders; a projection where their widths differ.",
    transforms=(row_positions(lambda config: int(config.model_type in _BART_DECODERS)),),
    shapes=CAPTION_SHAPES,
    submodels=SubModels(
        encoders=("vit", "deit", "beit", "swin", "donut-swin"),
        decoders=(*_BART_DECODERS, *_ROBERTA_DECODERS, "gpt2", "bert"),
        after_padding=_ROBERTA_DECODERS,
        tagging=("donut-swin",),
    ),
    tiny=(
        Tiny(
            config={
                "encoder": _VIT,
                "decoder": {**_BART, "model_type": "trocr", "cross_attention_hidden_size": 48},
            },
            image_processor=_VIT_PROCESSOR,
        ),
        Tiny(
            config={
                "encoder": _SWIN,
                "decoder": {**_BART, "model_type": "mbart", "scale_embedding": True},
            },
            image_processor={"image_processor_type": "DonutImageProcessor", "size": [16, 32]},
            name="donut",
        ),
        Tiny(
            config={
                "encoder": _VIT,
                "decoder": {**_SPECIAL_TOKENS, **_GPT2, "add_cross_attention": True},
            },
            image_processor=_VIT_PROCESSOR,
            name="gpt2",
        ),
    ),
)
