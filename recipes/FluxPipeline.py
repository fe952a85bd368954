# SPDX-License-Identifier: Apache-2.0
"""Flux 1, `diffusers.pipelines.flux`: black-forest-labs/FLUX.1-dev, FLUX.1-schnell.

Unusual: patches of latents and tokens of T5 in one transformer, of dual and of single blocks. FLUX.1-dev reads the
scale of guidance; its noise levels depend on the size of the image.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Pipeline, Recipe, Tiny

_TEXT_ENCODERS = {
    "text_encoder": {
        "vocab_size": 530,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "bos_token_id": 528,
        "eos_token_id": 529,
        "pad_token_id": 529,
    },
    "text_encoder_2": {
        "vocab_size": 112,
        "d_model": 32,
        "d_kv": 6,
        "d_ff": 40,
        "num_layers": 3,
        "num_heads": 4,
        "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
    },
}
_TRANSFORMER = {
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 4,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 24,
    "axes_dims_rope": [4, 6, 6],
}
_VAE = {
    "sample_size": 32,
    "block_out_channels": [8, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 4,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
_SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "base_shift": 0.5}

RECIPE = Recipe(
    model_type="FluxPipeline",
    architectures=("FluxPipeline",),
    task="text-to-image",
    special="A transformer of patches of latents and tokens of T5, with a vector of CLIP; its velocity is integrated.",
    pipeline=Pipeline(
        family="flux",
        components={
            "text_encoder": "CLIPTextModel",
            "text_encoder_2": "T5EncoderModel",
            "transformer": "FluxTransformer2DModel",
            "vae": "AutoencoderKL",
        },
    ),
    shapes=IMAGE_SHAPES,
    tiny=(
        Tiny(
            config={
                **_TEXT_ENCODERS,
                "transformer": {**_TRANSFORMER, "guidance_embeds": True},
                "vae": _VAE,
                "scheduler": {
                    **_SCHEDULER,
                    "shift": 3.0,
                    "max_shift": 1.15,
                    "use_dynamic_shifting": True,
                },
            }
        ),
        Tiny(
            name="distilled",
            config={
                **_TEXT_ENCODERS,
                "transformer": _TRANSFORMER,
                "vae": _VAE,
                "scheduler": {**_SCHEDULER, "shift": 1.0},
            },
        ),
    ),
)
