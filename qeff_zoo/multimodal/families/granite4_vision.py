# SPDX-License-Identifier: Apache-2.0
"""Granite 4 Vision: image features that are added before listed layers, and replace no token embeddings."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.images import Images


@dataclass(frozen=True, kw_only=True)
class Granite4Vision(Images):
    """Tiles in lines, whose features are added before layers of the language model."""

    layout: str = "lines"

    added: ClassVar[tuple[str, ...]] = ("deepstack_layer_map", "spatial_target_layers")
