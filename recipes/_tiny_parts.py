# SPDX-License-Identifier: Apache-2.0
"""Parts of tiny configurations that several recipes share: small encoders, special tokens, a rotary embedding.

This module is no recipe, and values are all that it holds: its name begins with an underscore, so the registry does not
list it. A language model is not a part; its configuration is `RECIPE.tiny[0].config` of its own recipe.
"""

# Vision encoders.
ENCODER_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "initializer_range": 0.2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IDEFICS3_VISION = {**ENCODER_SIZES, "image_size": 28, "patch_size": 7}
PIXTRAL_VISION = {**IDEFICS3_VISION, "model_type": "pixtral", "head_dim": 16, "image_size": 56}
VIT_VISION = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
    "initializer_range": 0.2,
}
CLIP_VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
    "projection_dim": 64,
    "initializer_range": 0.2,
}
SIGLIP_VISION = {**CLIP_VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
#: SigLIP 2, for images of any size: its positions are interpolated.
SIGLIP2_VISION = {name: value for name, value in CLIP_VISION.items() if name != "image_size"}
SAM_VISION = {
    "hidden_size": 32,
    "output_channels": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 128,
    "patch_size": 16,
    "window_size": 4,
    "global_attn_indexes": [1],
    "mlp_dim": 48,
    "initializer_range": 0.2,
}
#: Encoder of patches of images of any size, line by line.
PATCH_VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "initializer_range": 0.2,
}
#: Labels of pixels, of models that segment images.
PIXEL_LABELS = {"0": "wall", "1": "sky", "2": "tree", "3": "road"}
QWEN_VISION = {"hidden_size": 32, "num_heads": 2, "patch_size": 4, "initializer_range": 0.2}
GLM_VISION = {
    "hidden_size": 64,
    "out_hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "depth": 2,
    "patch_size": 4,
    "image_size": 16,
    "initializer_range": 0.2,
}

# Audio encoders.
WHISPER_AUDIO = {
    "num_mel_bins": 8,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "d_model": 32,
    "max_source_positions": 20,
    "initializer_range": 0.2,
}
QWEN_OMNI_AUDIO = {
    "num_mel_bins": 8,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "d_model": 32,
    "n_window": 10,
    "max_source_positions": 20,
    "output_dim": 64,
    "initializer_range": 0.2,
}
FAST_CONFORMER = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "conv_kernel_size": 5,
    "subsampling_conv_channels": 24,
    "num_mel_bins": 16,
    "initializer_range": 0.2,
}

# What stands between an encoder and a language model.
IMAGE_GRIDS = [[28, 56], [56, 28], [56, 56]]
QWEN_TOKENS = {"image_token_id": 200, "video_token_id": 201, "vision_start_token_id": 202}
GEMMA4_TOKENS = {
    "image_token_id": 200,
    "boi_token_id": 201,
    "eoi_token_id": 202,
    "video_token_id": 203,
    "audio_token_id": 204,
    "boa_token_id": 205,
    "eoa_token_index": 206,
}
#: Rotary embedding over time, row and column, in half of a head.
MULTIMODAL_ROPE = {
    "rope_type": "default",
    "rope_theta": 1000.0,
    "mrope_section": [1, 1, 2],
    "partial_rotary_factor": 0.5,
}
