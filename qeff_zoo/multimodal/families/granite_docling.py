# SPDX-License-Identifier: Apache-2.0
"""Granite Docling: tiles whose features are added after several layers, with optional finer image tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.errors import MediaError
from qeff_zoo.multimodal.families.idefics3 import Idefics3, grid_of

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.program import Array

#: Array of the processor that selects finer image tokens; field of the vision config that enables them; and the
#: argument of the module that computes them.
_FINE_MASK, _HAS, _ARGUMENT = "tile_fine_mask", "use_fine_route", "fine"


@dataclass(frozen=True, kw_only=True)
class GraniteDocling(Idefics3):
    """Tiles, each with the usual image tokens and, if the model has weights for them, with finer ones."""

    deepstack: str = "deepstack_visual_indexes"

    mask: ClassVar[str] = "pixel_attention_mask"

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(grid=grid_of, write=_write)

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import vision_tracing

        argument = _ARGUMENT if getattr(model.config.vision_config, _HAS) else ""
        return vision_tracing.tracing(model, self, side=side, finer=argument)

    def chosen(
        self, features: "dict[str, Array]", prepared: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `Images`."""
        from qeff_zoo.multimodal.encoding.vision_encoder import FINER

        wanted = _FINE_MASK in prepared
        finer = {name for name in features if name.startswith(FINER)}
        if wanted and not finer:
            raise MediaError(
                f"An image was prepared with {_FINE_MASK}, for more rows of each tile; expected none, "
                "since this model has no weights for that. Leave it out of what the processor is asked for."
            )
        names = finer if wanted else features.keys() - finer
        return {name.removeprefix(FINER): features[name] for name in features if name in names}

    @property
    def arrays(self) -> tuple[str, ...]:
        """See `Images`."""
        return (*super().arrays, _FINE_MASK)


def _write(grid: "Grid", rows: int) -> "Written":
    """Return the tokens of Idefics 3; an image without tiles has the name of a tile, not of the whole image."""
    each = rows // grid[0]
    tokens: Written = []
    for row in range(max(grid[1], 1)):
        for column in range(max(grid[2], 1)):
            tokens += ["<fake_token_around_image>", f"<row_{row + 1}_col_{column + 1}>", each]
        tokens.append("\n")
    if grid[0] > 1:
        whole: Written = ["<fake_token_around_image>", "<global-img>", each]
        tokens[-1:] = ["\n\n", *whole, "<fake_token_around_image>"]
    return tokens
