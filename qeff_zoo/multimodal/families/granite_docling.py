# SPDX-License-Identifier: Apache-2.0
"""Granite Docling: tiles whose features are added after several layers, with optional finer image tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import MediaError
from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.runtime.program import Array
    from qeff_zoo.tasks import Tracing

#: Array of the processor that selects finer image tokens; field of the vision config that enables them; and the
#: argument of the module that computes them.
_ASKS, _HAS, _ARGUMENT = "tile_fine_mask", "use_fine_route", "fine"


@dataclass(frozen=True, kw_only=True)
class GraniteDocling(Images):
    """Tiles, each with the usual image tokens and, if the model has weights for them, with finer ones."""

    layout: str = "named_tiles_or_one"
    nested: bool = True
    mask: str = "pixel_attention_mask"
    deepstack: str = "deepstack_visual_indexes"

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.tasks import vision_tracing

        argument = _ARGUMENT if getattr(model.config.vision_config, _HAS) else ""
        return vision_tracing.tracing(model, self, side=side, finer=argument)

    def chosen(
        self, features: "dict[str, Array]", prepared: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `Images`."""
        from qeff_zoo.runtime.vision_encoder import FINER

        wanted = _ASKS in prepared
        finer = {name for name in features if name.startswith(FINER)}
        if wanted and not finer:
            raise MediaError(
                f"A picture was prepared with {_ASKS}, for more rows of each tile; expected none, "
                "since this model has no weights for that. Leave it out of what the processor is asked for."
            )
        names = finer if wanted else features.keys() - finer
        return {name.removeprefix(FINER): features[name] for name in features if name in names}

    @property
    def arrays(self) -> tuple[str, ...]:
        """See `Images`."""
        return (*super().arrays, _ASKS)
