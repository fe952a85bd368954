# SPDX-License-Identifier: Apache-2.0
"""RADIO: patches of images of any size, whose learned positions are a corner of a square as long as the longer side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.patch_grid import PatchGrid

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array

#: Array of the processor with rows and columns of each image's patches.
_GRID = "image_grid_hw"
#: Inputs of the program with the learned positions around each patch, and their weights.
_PLACES = ("interp_indices", "interp_weights")
#: Values of the vision config where a config.json has none.
_DEFAULTS = {"patch_size": 16, "max_img_size": 2048}


@dataclass(frozen=True, kw_only=True)
class Radio(PatchGrid):
    """Patches of images of any size, behind tokens of the vision encoder to which all of them attend."""

    before: tuple[int | str, ...] = ("<img>",)
    after: tuple[int | str, ...] = ("</img>",)
    taps: str = "bilinear"

    lines: ClassVar[bool] = True
    placed: ClassVar[bool] = False

    def geometry(self, config: Mapping[str, Any]) -> "PatchGeometry":
        """As of `PatchGrid`."""
        from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry

        vision = {**_DEFAULTS, **config["vision_config"]}
        vision["image_size"] = vision["max_img_size"]
        merge = round(1 / float(config.get("downsample_ratio", 0.5)))
        return PatchGeometry.read({**config, "vision_config": vision}, self, merge)

    def trace_language(self, model: Any, audio: Any = None, **variant: Any) -> "Tracing":
        """As of `Images`: logits are made within the language model, whose head the whole does not name."""
        from qeff_zoo.export.transforms.modules import give

        give(model, _head, "get_output_embeddings")
        return super().trace_language(model, audio, **variant)

    def traced_module(self, model: Any, geometry: "PatchGeometry", names: list[str]) -> Any:
        """As of `PatchGrid`: patches of merged squares lie one below another, all in the segment of the tokens."""
        import torch

        from qeff_zoo.export.concrete import Concrete
        from qeff_zoo.export.transforms.encoder_attention import apart
        from qeff_zoo.multimodal.tracing.forward_patches import swapped
        from qeff_zoo.multimodal.tracing.patch_tracing import rows_of

        class Placed(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, given: Sequence[Any]) -> tuple[Any, ...]:
                arguments = dict(zip(names, given, strict=True))
                patches, vision = arguments["pixel_values"], self.model.vision_model
                embed = vision.embeddings
                indices, weights = (arguments[name] for name in _PLACES)
                embeddings = (embed.position_embedding[0][indices] * weights[..., None]).sum(1)
                side = vision.config.patch_size
                image = patches[:1].reshape(1, vision.config.num_channels, side, side)
                swaps = (
                    (embed, "_image_to_patches", lambda _: patches[None]),
                    (embed, "_interpolate_position_embedding", lambda *_: embeddings[None]),
                    (self.model, "pixel_shuffle", _joined),
                )
                tokens, ends = vision.config.num_summary_tokens, arguments["cu_seqlens"]
                ends = torch.cat([ends[:1], ends[1:] + tokens])
                mask = apart(patches.shape[0] + tokens, ends)
                with Concrete(), swapped(*swaps):
                    features = vision(image, attention_mask=mask).features
                    rows = self.model.project_vision_features(
                        features, patches.shape[0] // geometry.merge, geometry.merge
                    )
                return (rows_of(rows),)

        def _joined(features: Any, **_: Any) -> Any:
            return features.reshape(1, -1, 1, geometry.merge**2 * features.shape[-1])

        return Placed()

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """As of `Images`: all patches in one call."""
        import numpy as np

        from qeff_zoo.runtime.decoding.multimodal_spans import Encoded

        geometry = vision.geometry
        height, width = (int(size) for size in prepared[_GRID].reshape(2))
        square = geometry.describe((1, max(height, width), max(height, width)))
        inside = (square["position_ids"] < (height, width)).all(1)
        pixels = np.asarray(prepared[self.pixels], np.float32)
        inputs = {
            self.pixels: geometry.ordered(pixels, (1, height, width)),
            **{name: square[name][inside] for name in _PLACES},
            "cu_seqlens": np.array([0, len(pixels), len(pixels)]),
        }
        grid = 1, height // geometry.merge, width // geometry.merge
        return Encoded(digest=digest, features=vision.run(inputs), grid=grid)

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """As of `Images`."""
        import numpy as np

        height, width = (side * vision.geometry.merge for side in size)
        values = [
            length for length in vision.program.inputs[self.pixels].shape if isinstance(length, int)
        ]
        pixels = random.standard_normal((height * width, *values), np.float32)
        return {_GRID: np.array([[height, width]]), self.pixels: pixels}


def _head(model: Any) -> Any:
    return model.language_model.get_output_embeddings()
