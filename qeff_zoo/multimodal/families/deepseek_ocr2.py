# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-OCR 2: tiles, then the whole image with the learned token at its end; those of tiles are dropped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.two_sizes import TwoSizes

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Layout
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class DeepSeekOcr2(TwoSizes):
    """Tiles before the whole image."""

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(arrange=_arrange)


def _arrange(tiles: "Sequence[Array]", prepared: "Mapping[str, Array]", config: Any) -> "Array":
    import numpy as np

    whole, *parts = tiles
    return np.concatenate([*(part[:-1] for part in parts), whole])
