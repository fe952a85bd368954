# SPDX-License-Identifier: Apache-2.0
"""SEW fine-tuned by CTC, `transformers.models.sew`: sew-tiny-100k-ft-ls100h and larger ones."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .wav2vec2 import RECIPE as W2V

RECIPE = replace(
    W2V,
    model_type="sew",
    architectures=("SEWForCTC", "SEWForSequenceClassification"),
    rev=3,
    special="Wav2Vec 2.0's encoder over frames that are averaged two by two, and stretched again behind it.",
    tiny=(
        Tiny(config={**W2V.tiny[0].config, "squeeze_factor": 2}),
        Tiny(
            config={**W2V.tiny[0].config, "squeeze_factor": 3, "feat_extract_norm": "layer"},
            name="three",
        ),
    ),
)
