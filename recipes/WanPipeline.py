# SPDX-License-Identifier: Apache-2.0
"""Wan, text to video, `diffusers.pipelines.wan`: Wan-AI/Wan2.1-T2V-1.3B-Diffusers, Wan2.2-T2V-A14B-Diffusers, -TI2V-5B.

Unusual: convolutions of the VAE are causal in time, and decode a frame of latents with features of those before.
Version 2.2 has two transformers, for steps with much noise and with little; its model of 5 B has a VAE with patches of
pixels.
"""

from qeff_zoo.recipe import VIDEO_SHAPES, Pipeline, Recipe, Tiny

_TEXT_ENCODER = {
    "vocab_size": 112,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 3,
    "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
_TRANSFORMER = {
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "text_dim": 32,
    "freq_dim": 8,
    "ffn_dim": 40,
}
_VAE = {
    "base_dim": 4,
    "z_dim": 4,
    "dim_mult": [1, 2, 2],
    "temperal_downsample": [True, True],
    "scale_factor_spatial": 4,
    "num_res_blocks": 1,
    "latents_mean": [-0.7571, -0.7089, -0.9113, 0.1075],
    "latents_std": [2.8184, 1.4541, 2.3275, 2.6558],
}
_SCHEDULER = {
    "_class_name": "UniPCMultistepScheduler",
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 3.0,
}

RECIPE = Recipe(
    model_type="WanPipeline",
    architectures=("WanPipeline",),
    task="text-to-video",
    special="One or two transformers of latents of a video; the VAE decodes frames with features of those before.",
    pipeline=Pipeline(
        family="wan",
        components={
            "text_encoder": "UMT5EncoderModel",
            "transformer": "WanTransformer3DModel",
            "transformer_2": "WanTransformer3DModel",
            "vae": "AutoencoderKLWan",
        },
        optional=("transformer_2",),
    ),
    shapes=VIDEO_SHAPES,
    tiny=(
        Tiny(
            name="2.2",
            config={
                "text_encoder": _TEXT_ENCODER,
                "transformer": _TRANSFORMER,
                "transformer_2": _TRANSFORMER,
                "vae": _VAE,
                "scheduler": _SCHEDULER,
                "boundary_ratio": 0.875,
            },
        ),
        Tiny(
            name="2.1",
            config={
                "text_encoder": _TEXT_ENCODER,
                "transformer": {**_TRANSFORMER, "num_attention_heads": 3},
                "vae": _VAE,
                "scheduler": {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0},
            },
        ),
        Tiny(
            name="2.2 5B",
            config={
                "text_encoder": _TEXT_ENCODER,
                "transformer": _TRANSFORMER,
                "vae": {
                    **_VAE,
                    "dim_mult": [1, 2, 4, 4],
                    "temperal_downsample": [False, True, True],
                    "decoder_base_dim": 8,
                    "is_residual": True,
                    "in_channels": 12,
                    "out_channels": 12,
                    "patch_size": 2,
                    "scale_factor_spatial": 16,
                },
                "scheduler": {**_SCHEDULER, "flow_shift": 5.0},
                "expand_timesteps": True,
            },
        ),
    ),
)
