# SPDX-License-Identifier: Apache-2.0
"""Base of the image encoders that recipes declare: values, and hooks that a family of models overrides.

Importing this module, or a family, imports neither numpy nor torch; a hook imports what it needs.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.recipe_media import Media

if TYPE_CHECKING:
    from qeff_zoo.multimodal.audio import Audio
    from qeff_zoo.runtime.image_prompt_templates import Layout
    from qeff_zoo.runtime.multimodal_spans import Encoded
    from qeff_zoo.runtime.patch_positions import Tower
    from qeff_zoo.runtime.program import Array
    from qeff_zoo.runtime.vision_encoder import Vision
    from qeff_zoo.tasks import Tracing


@dataclass(frozen=True, kw_only=True)
class Images(Media):
    """Images of one size, or tiles of one size, each of which the vision encoder reads by itself.

    Args:
        layout: Order of the tiles in the features and in the prompt: one of `image_prompt_templates.LAYOUTS`.
        nested: Whether the forward takes the tiles of an image on an axis of their own.
        video: Field of the config with the placeholder token of a video, or the token itself where no config has it;
            empty if the vision encoder reads no frames.
        video_processor: transformers' class for videos, if a checkpoint's own files name none.
        stamp: Texts before and after the rows of each step of a video, which is read as an image by itself, and
            between steps; those around it are formatted with the step's time in seconds, the same without its fraction
            as `second`, as minutes and seconds as `clock`, and its `number`. Empty if a video is read as one, or if its
            processor has them. Then texts before and after the whole video, perhaps empty, if the tokenizer reads the
            text together with its surroundings, so that no token stands for a video; the first is formatted with the
            number of its `frames`, in words, and its `duration`.
    """

    token: str = "image_token_id"
    layout: str = ""
    nested: bool = False
    video: str = ""
    video_processor: str = ""
    stamp: tuple[str, ...] = ()

    #: Name of the pixels in the result of a processor, and of the forward's argument.
    pixels: ClassVar[str] = "pixel_values"
    #: Name of tiles in the result of a processor, if those have another size than the whole and a program of their own.
    tiles: ClassVar[str] = ""
    #: Whether images have any size, which no padding fills up.
    any_size: ClassVar[bool] = False
    #: Whether layers of the language model read images by cross-attention, so that no token has a row of features.
    by_cross_attention: ClassVar[bool] = False
    #: Whether frames of videos go through other operators than images: a program of their own.
    has_frame_program: ClassVar[bool] = False
    #: Special tokens around the number of each image of a prompt.
    numbered: ClassVar[tuple[str, ...]] = ()
    #: Chat template of prompts with videos, if the processor has one for those.
    video_template: ClassVar[str] = ""

    # --- the package ---------------------------------------------------------------------------------------------

    @property
    def one_piece(self) -> bool:
        """Whether an image is one array of one size, so that one program may read it with the text."""
        return not (self.layout or self.nested)

    def geometry(self, config: Mapping[str, Any]) -> "Tower | None":
        """Return the geometry of patches; None if the vision encoder takes images.

        Args:
            config: Of the model.
        """
        return None

    def frame_geometry(self, config: Mapping[str, Any]) -> "Tower | None":
        """Return the geometry of patches of the frame program; None if that takes frames."""
        return None

    @property
    def prompt_layout(self) -> "Layout":
        """How an image is written into a prompt."""
        from qeff_zoo.runtime.image_prompt_templates import LAYOUTS

        return LAYOUTS[self.layout]

    # --- tracing -------------------------------------------------------------------------------------------------

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """Describe how to trace the vision encoder.

        Args:
            model: From `loader.load_meta`.
            side: Pixels on a side of an image; None for the config's value.
        """
        from qeff_zoo.tasks import vision_tracing

        return vision_tracing.tracing(model, self, side=side)

    def trace_language(self, model: Any, audio: "Audio | None" = None, **variant: Any) -> "Tracing":
        """Describe how to trace the language model.

        Args:
            model: From `loader.load_meta`, possibly with fewer layers than its config.
            audio: Audio input of the same prompts, if the model has one.
            **variant: As of `qeff_zoo.tasks.multimodal_tracing.tracing`.
        """
        from qeff_zoo.tasks import multimodal_tracing

        return multimodal_tracing.tracing(model, images=self, sounds=audio, **variant)

    def trace_frame(self, model: Any) -> "Tracing":
        """Describe how to trace the frame program."""
        raise NotImplementedError

    def forward_arguments(self, pixels: Any, more: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of transformers' forward for one tile.

        Args:
            pixels: (1, channels, height, width).
            more: The program's other inputs.
        """
        import torch

        found = {self.pixels: pixels[None] if self.nested else pixels}
        if self.layout == "lines":
            found["image_sizes"] = torch.tensor([pixels.shape[2:]])
        if self.mask:
            found[self.mask] = torch.ones(1, 1, dtype=torch.bool)
        return found

    def traced_with(self, model: Any) -> AbstractContextManager[Any]:
        """Return a context in which the forward is traced."""
        return nullcontext()

    # --- the runtime ---------------------------------------------------------------------------------------------

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """Return the features of an image: here tile by tile.

        Args:
            vision: Runs the program.
            digest: Of the image.
            prepared: Arrays of the processor.
        """
        import numpy as np

        tiles, masks = self.tiles_of(vision, prepared)
        # The program's other inputs are the same tiles in another size.
        names = vision.program.inputs.keys() - {self.pixels} - masks.keys()
        others = {name: np.asarray(prepared[name], np.float32) for name in names} | masks
        found = [
            vision.run(
                {self.pixels: tile[None], **{name: one[[at]] for name, one in others.items()}}
            )
            for at, tile in enumerate(tiles)
        ]
        return vision.arranged(digest, [self.chosen(one, prepared) for one in found], prepared)

    def tiles_of(
        self, vision: "Vision", prepared: "Mapping[str, Array]"
    ) -> "tuple[Sequence[Array], dict[str, Array]]":
        """Return the tiles of an image without padding, and the masks of the program's inputs."""
        import numpy as np

        pixels = np.asarray(prepared[self.pixels], np.float32)
        tiles = [*pixels.reshape(-1, *pixels.shape[-3:])]
        mask = prepared.get(self.mask)
        if mask is None:
            height, width = pixels.shape[-2:]
            return [self.cropped(one, height, width, vision.config) for one in tiles], {}
        if mask.ndim < 3:  # of tiles
            there = mask.reshape(-1)
            return [one for one, kept in zip(tiles, there, strict=True) if kept], {}
        real = mask.reshape(-1, *mask.shape[-2:]) > 0
        sizes = zip(tiles, real.any(2).sum(1), real.any(1).sum(1), strict=True)
        return [
            self.cropped(tile, height, width, vision.config) for tile, height, width in sizes
        ], {}

    def cropped(self, tile: "Array", height: int, width: int, config: Mapping[str, Any]) -> "Array":
        """Return a tile (channels, rows, columns) without padding.

        Args:
            tile: As the processor makes it.
            height: Rows that are no padding.
            width: Columns that are no padding.
            config: Of the model.
        """
        return tile[:, :height, :width]

    def chosen(
        self, features: "dict[str, Array]", prepared: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """Return those of a tile's features that the processor asks for."""
        return features

    def rows_of(self, vision: "Vision", inputs: "Mapping[str, Array]") -> int | None:
        """Return the rows of features of a program's inputs; None if its outputs have a fixed number."""
        return None

    @property
    def arrays(self) -> tuple[str, ...]:
        """Further arrays that the processor returns for each image."""
        return tuple(filter(None, (self.mask, self.tiles)))

    def is_uncut(self, images: int) -> bool:
        """Tell whether images of a prompt are not cut into tiles.

        Args:
            images: Their number.
        """
        return False

    def check_prompt(self, images: int, videos: int) -> None:
        """Raise `GenerationError` if a prompt may not have so many images and videos."""

    # --- videos --------------------------------------------------------------------------------------------------

    def video_arrays(
        self, pixels: "Array", given: Mapping[str, Any], known: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """Name the arrays of a video as those of images are named.

        Args:
            pixels: Of all frames.
            given: Result of the processor.
            known: Times of the steps, and the duration, if the processor returns them.
        """
        import numpy as np

        from qeff_zoo.runtime.image_prompt_templates import OF_VIDEO
        from qeff_zoo.runtime.video_steps import TIMES

        frames = pixels.reshape(-1, *pixels.shape[-3:])
        if not self.stamp:
            return {"pixel_values": frames, OF_VIDEO: np.array(1)}
        untimed = {} if "{clock}" in self.stamp[0] else {TIMES: np.zeros(len(frames))}
        return {"pixel_values": frames, **untimed, **known}

    def video_rows(self, prepared: "Mapping[str, Array]", config: Mapping[str, Any]) -> int:
        """Return how many rows of features a video takes at least.

        Args:
            prepared: Of `video_arrays`.
            config: Of the model.
        """
        count = len(prepared["pixel_values"])
        if self.layout == "lines":
            vision = config["vision_config"]
            side = -(-(int(vision["image_size"]) // int(vision["patch_size"])) // 2)
            return count * side**2 + 1
        if scale := config.get("scale_factor"):
            vision = config["vision_config"]
            side = int(vision["image_size"]) // int(vision["patch_size"]) // int(scale)
            return count * side**2
        return count * int(config.get("image_seq_length", 1))

    # --- validation ----------------------------------------------------------------------------------------------

    @property
    def drawn_as_pixels(self) -> bool:
        """Whether validation draws images for the processor, and not its results."""
        return bool(self.layout)

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """Draw a result of the processor.

        Args:
            vision: With the program.
            size: Height and width in rows of features, if the vision encoder takes any.
            random: A generator of numpy.
        """
        import numpy as np

        tensor = vision.program.inputs[self.pixels]
        shape = [one for one in tensor.shape if isinstance(one, int)]
        shape = [1, *shape] if self.nested else shape
        found: dict[str, Array] = {}
        if self.mask:
            found[self.mask] = np.ones(shape[:-3], bool)
        found[self.pixels] = random.standard_normal(shape, np.float32)
        return found

    def sample_frame(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """Draw a result of the video processor, for the frame program."""
        raise NotImplementedError

    def joined(self, arrays: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return torch tensors of several images as transformers' processor returns them in one call.

        Args:
            arrays: By name, a tensor for each image.
        """
        return arrays
