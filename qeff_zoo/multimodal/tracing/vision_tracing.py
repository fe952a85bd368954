# SPDX-License-Identifier: Apache-2.0
"""One image through the vision encoder of a vision-language model, for tracing: program `vision`.

IN   pixel_values (1, channels, height, width) f32      an image or a tile, of the one size of the encoder, or of any
                                                        size in whole patches
     [high_res_pixel_values (1, channels, height, width) f32, if a second encoder takes another size]; or
     pixel_values (patches, values) f32                 patches of an image of any size, and their positions: see
                                                        `patch_tracing`; or crops: `overlapping_crop_tracing`; or
     pixel_values (image_rows, values) f32              patches alone, for models without a vision encoder
                                                        in program `frames` a frame of a video
OUT  image_embeds (rows, hidden)                        a row for each placeholder token of the image or tile; if
                                                        lines of an image end with a learned row, that row is the last;
                                                        then the rows of tokens around it, if any, in listed order
     [deepstack.i (rows, hidden)]                       rows added to the states after layer i of the language model
     [finer.image_embeds, finer.deepstack.i]            the same with more rows, if a tile may have either number

The traced forward is transformers' own, up to where it would merge the features into the text.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.export.transforms import encoder_attention
from qeff_zoo.multimodal.encoding.vision_encoder import FINER
from qeff_zoo.multimodal.tracing import patch_tracing as patches
from qeff_zoo.multimodal.tracing.forward_patches import FeatureRecorder, swapped, unread
from qeff_zoo.multimodal.tracing.patch_tracing import deepstack_layers, rename, rows_of
from qeff_zoo.recipe_media import ImageEncoder, Media

#: Functions of a module that count tiles: here there is one.
_ALONE = {"image_size_to_num_patches": lambda **_: 1}


class ImageForward(nn.Module):
    """The forward of an image or a tile, up to the merge.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        images: Image input of the recipe.
        finer: Argument of the module for more rows of a tile than by default; empty if there is none.
    """

    def __init__(self, model: Any, images: ImageEncoder, finer: str = "") -> None:
        super().__init__()
        self.model, self.images, self.finer = model, images, finer
        token = attrgetter(images.token)(model.config)
        around = getattr(model.config, images.around) if images.around else ()
        self.tokens = torch.tensor([[token, token, *around]])

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows, then those of the tokens around them."""
        (pixels, *more), noted = given, FeatureRecorder()
        arguments = self.images.forward_arguments(pixels, more)
        module = sys.modules[type(self.model).__module__]
        alone = {name: value for name, value in _ALONE.items() if hasattr(module, name)}
        with (
            swapped(unread(self.model)),
            mock.patch.dict(vars(module), alone),
            self.images.traced_with(self.model),
            Concrete(),
            noted,
        ):
            if self.images.added:
                every = self.model.get_image_features(**arguments).deepstack_features
                return tuple(rows_of(rows) for _, rows in every)
            if self.images.deepstack:
                return self._of_layers(arguments)
            self.model(input_ids=self.tokens, **arguments)
        rows = rows_of(noted.features)
        return (torch.cat([rows, rows_of(noted.around)]) if noted.around else rows,)

    def _of_layers(self, arguments: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Return the feature rows, those of deepstack layers, and the finer variants of all of them."""
        outputs: list[Any] = []
        changes = []
        if self.finer:
            part = [module for module in self.model.modules() if _takes(module, self.finer)][-1]
            plain = part.forward

            def both(*args: Any, **given: Any) -> Any:
                rows, added = plain(*args, **{**given, self.finer: True})
                outputs.extend([rows, *added])
                return plain(*args, **given)

            changes.append((part, "forward", both))
        with swapped(*changes):
            output = self.model.get_image_features(**arguments)
        return tuple(map(rows_of, [output.pooler_output, *output.deepstack_features, *outputs]))


class Frame(ImageForward):
    """The forward of a single frame of a video, for a model whose images go through other operators."""

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows of a frame, (1, channels, height, width)."""
        (pixels,) = given
        with Concrete():
            output = self.model.base_model.get_video_features(pixel_values_videos=pixels[None])
        return (rows_of(output.pooler_output),)


def _takes(module: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(module.forward).parameters


class Column(ImageForward):
    """The forward of an image whose merged squares of patches form one column: their positions are an input.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        images: Image input of the recipe.
        merge: Number of patches on a side of a square.
    """

    def __init__(self, model: Any, images: ImageEncoder, merge: int) -> None:
        super().__init__(model, images)
        self.merge = merge

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows of patches, (patches, channels, rows, columns), positions and ends."""
        patches, positions, ends = given
        channels, side = patches.shape[1:3]
        rows = patches.shape[0] // self.merge**2
        squares = patches.reshape(rows, self.merge, self.merge, channels, side, side)
        column = squares.permute(3, 0, 1, 4, 2, 5)
        wide = self.merge * side
        encoder = self.model.get_encoder(modality="image")
        turn, run = encoder.patch_positional_embedding, encoder.transformer
        plain, attend = turn.forward, run.forward

        def packed(embeds: Tensor, **named: Any) -> Any:
            return attend(embeds, **{**named, "cu_seq_lens_q": ends})

        with swapped(
            (turn, "forward", lambda embeds, _: plain(embeds, positions)), (run, "forward", packed)
        ):
            return super().forward([column.reshape(1, channels, rows * wide, wide)])


class _Lengths:
    """Sum of a mask of patches without padding: the number of patches."""

    def __init__(self, count: Any) -> None:
        self.count = count

    def sum(self, dim: int) -> list[Any]:
        return [self.count]


class Shaped(nn.Module):
    """Patches of an image up to its features, for a forward that takes the height and width of each image.

    The forward takes those of one column of merged squares: positions are in the interpolation weights.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        merge: Number of patches on a side of a square.
    """

    def __init__(self, model: Any, merge: int) -> None:
        super().__init__()
        self.model, self.merge = model, merge

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows of patches (patches, values), whose positions are in the weights alone."""
        patches, ends, shares = given
        count = patches.shape[0]
        encoder = self.model.get_encoder(modality="image")
        embed, run = encoder.embeddings, encoder.encoder
        attend, apart = run.forward, encoder_attention.apart(count, ends)

        def place(table: Tensor, *_: Any, **__: Any) -> Tensor:
            return (shares @ table.flatten(0, 1))[None]

        def packed(inputs_embeds: Tensor, attention_mask: Any, **named: Any) -> Any:
            return attend(inputs_embeds, apart, **named)

        see = encoder.forward

        def unmasked(**named: Any) -> Any:
            return see(**{**named, "pixel_attention_mask": None})

        changes = (
            (embed, "resize_positional_embeddings", place),
            (run, "forward", packed),
            (encoder, "forward", unmasked),
        )
        with Concrete(), swapped(*changes):
            output = self.model.get_image_features(
                pixel_values=patches[None],
                spatial_shapes=[(count // self.merge, self.merge)],
                pixel_attention_mask=_Lengths(count),
            )
        return (rows_of(output.pooler_output),)


def layers_of(media: Media, config: Any) -> list[int]:
    """Return the layers before which features are added, without a replacement of tokens."""
    listed = [one for name in media.added for one in getattr(config, name)]
    return [one if isinstance(one, int) else one[1] for one in listed]


def tracing(
    model: Any,
    images: ImageEncoder,
    *,
    side: int | None = None,
    module: type[ImageForward] = ImageForward,
    more: Mapping[str, Tensor] = MappingProxyType({}),
    finer: str = "",
) -> Tracing:
    """Describe how to trace a vision encoder of images of one size.

    Args:
        model: Model from `loader.load_meta`.
        images: Image input of the recipe.
        side: Pixels on a side of an image; None for the config's value.
        module: Class of the traced module.
        more: Examples of the program's other inputs, by name.
        finer: Argument of the module for more rows of a tile, see `ImageForward`.
    """
    vision = model.config.vision_config
    given = {images.pixels: image_of(vision, side or vision.image_size), **more}
    return _traced(module(model, images, finer), given, [{} for _ in given])


def of_any_size(model: Any, images: ImageEncoder, side: int | None = None) -> Tracing:
    """Describe how to trace a vision encoder of images of any height and width in whole patches.

    Args:
        model: Model from `loader.load_meta`.
        images: Image input of the recipe.
        side: Pixels on a side of the largest image; None for the config's value.
    """
    vision = model.config.vision_config
    unit = vision.patch_size * getattr(model.config, "spatial_merge_size", 1)
    most = (side or vision.image_size) // unit
    rows, columns = (Dim(name, min=2, max=most) for name in ("rows", "columns"))
    given = {images.pixels: image_of(vision, (2 * unit, 3 * unit))}
    traced = _traced(ImageForward(model, images), given, [{2: unit * rows, 3: unit * columns}])
    return replace(traced, then=_name_sides)


def _traced(
    module: ImageForward, given: Mapping[str, Tensor], axes: Sequence[Mapping[int, Any]]
) -> Tracing:
    images, config = module.images, module.model.config
    layers = layers_of(images, config)[1:] if images.added else deepstack_layers(images, config)
    added = len(layers)
    names = ["image_embeds", *(f"deepstack.{index}" for index in range(added))]
    if module.finer:
        names += [f"{FINER}{name}" for name in names]
    return Tracing(
        module=module.eval(),
        inputs={"given": [*given.values()]},
        dynamic_shapes={"given": [*axes]},
        input_names=[*given],
        output_names=names,
    )


def _made_of_patches(model: Any, values: Tensor) -> Any:
    return model.model.get_image_features(values).last_hidden_state


def of_patches(model: Any) -> Tracing:
    """Describe how to trace a projection that makes a feature row of each patch."""
    config = model.config
    example = torch.zeros(3, config.patch_size**2 * config.num_channels)
    return Tracing(
        module=patches.Rows(model, _made_of_patches).eval(),
        inputs={"given": [example]},
        dynamic_shapes={"given": [{0: Dim("image_rows", min=2)}]},
        input_names=["pixel_values"],
        output_names=["image_embeds"],
    )


def image_of(vision: Any, size: Any) -> Tensor:
    """Return an example image for a vision encoder, with a height and width."""
    sides = size if isinstance(size, list | tuple) else (size, size)
    return torch.zeros(1, getattr(vision, "num_channels", 3), *sides)


def _name_sides(graph: Any) -> None:
    """Name the symbols of an image's sides and of their product, in place of their expressions in the trace."""
    rename(graph.graph.inputs, lambda dim, axis: ("height", "width")[axis - 2] if axis > 1 else dim)
    rename(graph.graph.outputs, lambda dim, axis: dim if axis else "image_rows")
