# SPDX-License-Identifier: Apache-2.0
"""SEW-D fine-tuned by CTC, `transformers.models.sew_d`: sew-d-tiny-100k-ft-ls100h and larger ones."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .sew import RECIPE as SEW

_TINY = {
    **SEW.tiny[0].config,
    "position_buckets": 6,
    "max_position_embeddings": 40,
    "norm_rel_ebd": "layer_norm",
}

RECIPE = replace(
    SEW,
    model_type="sew-d",
    architectures=("SEWDForCTC", "SEWDForSequenceClassification"),
    special="SEW with DeBERTa's disentangled attention: distances in logarithmic buckets, both ways.",
    tiny=(
        Tiny(config=_TINY),
        Tiny(
            config={**_TINY, "squeeze_factor": 3, "share_att_key": False, "norm_rel_ebd": "none"},
            name="three",
        ),
    ),
)
