# SPDX-License-Identifier: Apache-2.0
"""Checkpoint of a small VITS model with a tokenizer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from qeff_zoo import registry
from qeff_zoo.validation import tiny_models

VOCABULARY = "k abcdefghijlmnopqrstuvwxyz'-\u0163\u00e9\u00f1\u00fc012"
SETTINGS = {
    "tokenizer_class": "VitsTokenizer",
    "add_blank": True,
    "normalize": True,
    "phonemize": False,
    "is_uroman": False,
    "language": "eng",
    "pad_token": "k",
    "unk_token": "<unk>",
}
#: Fewer layers than the recipe's, which are traced in less time.
SMALL = {
    "num_hidden_layers": 2,
    "upsample_rates": [4],
    "upsample_kernel_sizes": [8],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 2]],
    "depth_separable_num_layers": 1,
    "duration_predictor_num_flows": 2,
    "prior_encoder_num_flows": 2,
    "prior_encoder_num_wavenet_layers": 2,
    "noise_scale": 0.5,
    "speaking_rate": 0.5,
}


def write_tokenizer(folder: Path, added: Any = None, **settings: Any) -> None:
    if added:
        (folder / "added_tokens.json").write_text(json.dumps(added))
    numbers = {token: number for number, token in enumerate(VOCABULARY)}
    (folder / "vocab.json").write_text(json.dumps(numbers), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, **settings}))


def write(folder: Path) -> None:
    """Write a checkpoint.

    Args:
        folder: New folder.
    """
    recipe = registry.find_recipe("vits")
    tiny = replace(recipe.tiny[0], config={**recipe.tiny[0].config, **SMALL})
    tiny_models.make(recipe, tiny, folder)
    write_tokenizer(folder)
