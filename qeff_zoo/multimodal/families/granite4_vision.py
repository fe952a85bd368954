# SPDX-License-Identifier: Apache-2.0
"""Granite 4 Vision: image features that are added before listed layers, and replace no token embeddings."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.families.llava_next import LlavaNext


@dataclass(frozen=True, kw_only=True)
class Granite4Vision(LlavaNext):
    """Tiles in lines, whose features are added before layers of the language model."""

    added: ClassVar[tuple[str, ...]] = ("deepstack_layer_map", "spatial_target_layers")
