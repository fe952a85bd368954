# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion 3, `diffusers.pipelines.stable_diffusion_3`: stable-diffusion-3-medium-diffusers, -3.5-large.

Unusual: three text encoders; the last block of the transformer leaves the text out; version 3.5 normalizes queries and
keys, and its medium size has blocks with a second attention to the image alone.
"""

from dataclasses import replace

from qeff_zoo.recipe import Pipeline, Tiny

from .FluxPipeline import RECIPE as FLUX

_BASE = FLUX.tiny[0].config
_CLIP = _BASE["text_encoder"]
_PARTS = {
    "text_encoder": {**_CLIP, "projection_dim": 24},
    "text_encoder_2": {**_CLIP, "hidden_size": 16, "hidden_act": "gelu", "projection_dim": 20},
    "text_encoder_3": {**_BASE["text_encoder_2"], "d_model": 48},
    "vae": {
        **_BASE["vae"],
        "scaling_factor": 1.5305,
        "shift_factor": 0.0609,
        "latent_channels": 16,
    },
}
_TRANSFORMER = {
    "sample_size": 16,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 3,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "joint_attention_dim": 48,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 44,
    "pos_embed_max_size": 24,
}
_SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}

RECIPE = replace(
    FLUX,
    model_type="StableDiffusion3Pipeline",
    architectures=("StableDiffusion3Pipeline",),
    special="A transformer of latents, with the states of two CLIP encoders and T5; its velocity is integrated.",
    pipeline=Pipeline(
        family="stable_diffusion_3",
        components={
            "text_encoder": "CLIPTextModelWithProjection",
            "text_encoder_2": "CLIPTextModelWithProjection",
            "text_encoder_3": "T5EncoderModel",
            "transformer": "SD3Transformer2DModel",
            "vae": "AutoencoderKL",
        },
    ),
    tiny=(
        Tiny(config={**_PARTS, "transformer": _TRANSFORMER, "scheduler": _SCHEDULER}),
        Tiny(
            name="3.5",
            config={
                **_PARTS,
                "transformer": {
                    **_TRANSFORMER,
                    "num_layers": 5,
                    "dual_attention_layers": [0, 1],
                    "qk_norm": "rms_norm",
                },
                "scheduler": {**_SCHEDULER, "use_dynamic_shifting": True},
            },
        ),
    ),
)
