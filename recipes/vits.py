# SPDX-License-Identifier: Apache-2.0
"""VITS, `transformers.models.vits`: facebook/mms-tts-eng and 1,100 other languages, kakao-enterprise/vits-vctk.

Unusual: durations are drawn by flows of splines. Frames are drawn from priors of the tokens, changed by a flow, and
become samples in a HiFi-GAN vocoder.
"""

from qeff_zoo.recipe import ENCODER_SHAPES, Recipe, Tiny, Transform

_TINY = {
    "vocab_size": 37,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "window_size": 3,
    "ffn_dim": 48,
    "flow_size": 24,
    "spectrogram_bins": 17,
    "upsample_initial_channel": 32,
    "upsample_rates": [4, 3],
    "upsample_kernel_sizes": [8, 7],
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 2], [1, 3]],
    "leaky_relu_slope": 0.2,
    "layer_norm_eps": 1e-3,
    "depth_separable_num_layers": 2,
    "duration_predictor_flow_bins": 5,
    "duration_predictor_tail_bound": 3.0,
    "duration_predictor_num_flows": 2,
    "prior_encoder_num_flows": 2,
    "prior_encoder_num_wavenet_layers": 2,
    "posterior_encoder_num_wavenet_layers": 1,
    "wavenet_dilation_rate": 2,
}

RECIPE = Recipe(
    model_type="vits",
    architectures=("VitsModel",),
    task="text-to-speech",
    special="Durations and frames are drawn by flows; a HiFi-GAN vocoder makes samples of the frames.",
    transforms=(
        Transform(name="windowed_positions", count=lambda config: config.num_hidden_layers),
        Transform(
            name="spline_flows",
            count=lambda config: (
                2 * config.duration_predictor_num_flows * config.use_stochastic_duration_prediction
            ),
        ),
    ),
    shapes=ENCODER_SHAPES,
    tiny=(
        Tiny(config={**_TINY, "num_speakers": 3, "speaker_embedding_size": 6}),
        Tiny(
            name="predicted_durations",
            config={
                **_TINY,
                "use_stochastic_duration_prediction": False,
                "duration_predictor_filter_channels": 40,
                "ffn_kernel_size": 4,
                "speaking_rate": 0.8,
            },
        ),
    ),
)
