# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion 1 and 2, `diffusers.pipelines.stable_diffusion`: stable-diffusion-v1-5, sd2-community's 2-1.

Unusual: a checkpoint of components, each with a configuration of its own. The UNet of version 2 has projections by
linear layers, predicts velocity, and reads the states of a larger text encoder.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Pipeline, Recipe, Tiny

_TEXT_ENCODER = {
    "vocab_size": 530,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "projection_dim": 16,
    "bos_token_id": 528,
    "eos_token_id": 529,
    "pad_token_id": 529,
}
_UNET = {
    "sample_size": 16,
    "block_out_channels": [16, 32],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "layers_per_block": 1,
    "cross_attention_dim": 24,
    "attention_head_dim": 4,
    "norm_num_groups": 8,
    "norm_eps": 1e-4,
}
_VAE = {
    "sample_size": 32,
    "block_out_channels": [8, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 4,
}
_NOISE = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "steps_offset": 1,
    "set_alpha_to_one": False,
}

RECIPE = Recipe(
    model_type="StableDiffusionPipeline",
    architectures=("StableDiffusionPipeline",),
    task="text-to-image",
    special="A UNet removes noise from latents, with the states of a CLIP text encoder; a VAE makes pixels of them.",
    pipeline=Pipeline(
        family="stable_diffusion",
        components={
            "text_encoder": "CLIPTextModel",
            "unet": "UNet2DConditionModel",
            "vae": "AutoencoderKL",
        },
    ),
    shapes=IMAGE_SHAPES,
    tiny=(
        Tiny(
            config={
                "text_encoder": _TEXT_ENCODER,
                "unet": _UNET,
                "vae": _VAE,
                "scheduler": {"_class_name": "PNDMScheduler", "skip_prk_steps": True, **_NOISE},
            }
        ),
        Tiny(
            name="velocity",
            config={
                "text_encoder": {**_TEXT_ENCODER, "hidden_act": "gelu"},
                "unet": {
                    **_UNET,
                    "block_out_channels": [16, 32, 48],
                    "down_block_types": ["CrossAttnDownBlock2D"] * 2 + ["DownBlock2D"],
                    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 2,
                    "attention_head_dim": [2, 4, 6],
                    "use_linear_projection": True,
                    "upcast_attention": True,
                },
                "vae": {**_VAE, "scaling_factor": 0.3},
                "scheduler": {
                    "_class_name": "DDIMScheduler",
                    "prediction_type": "v_prediction",
                    "clip_sample": False,
                    **_NOISE,
                },
            },
        ),
    ),
)
