# SPDX-License-Identifier: Apache-2.0
"""One picture through the vision tower of a model that reads pictures and text, as it is traced: program `vision`.

IN   pixel_values (1, channels, height, width) f32      a picture or a tile, of the one size that the tower takes,
                                                        or of any size in whole patches
     [high_res_pixel_values (1, channels, height, width) f32, where a second tower reads it in another size]; or
     pixel_values (patches, values) f32                 patches of a picture of any size, and where they lie: see
                                                        `patch_tracing`; or crops: `overlapping_crop_tracing`; or
     pixel_values (image_rows, values) f32              patches alone, of models without a tower
                                                        in program `frames` a frame of a video
OUT  image_embeds (rows, hidden)                        a row for each placeholder token of the picture or tile; where
                                                        lines of a picture end with a learned row, that is the last;
                                                        where tokens around it have rows, too, those, as they are listed
     [deepstack.i (rows, hidden)]                       what is added to the states after layer i of the language model
     [finer.image_embeds, finer.deepstack.i]            the same in more rows, where a tile may become as many

The forward that is traced is transformers' own, up to where it would merge the features into the text.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.export.concrete import Concrete
from qeff_zoo.export.transforms import towers
from qeff_zoo.multimodal.images import Images
from qeff_zoo.multimodal.manifest import images_of
from qeff_zoo.recipe import Media
from qeff_zoo.runtime.vision_encoder import FINER
from qeff_zoo.tasks.forward_patches import FeatureRecorder, swapped, unread
from qeff_zoo.tasks.packed_patch_tracing import Packed
from qeff_zoo.tasks.patch_tracing import rename, rows_of

from . import Tracing, overlapping_crop_tracing
from . import patch_tracing as patches

#: Layouts of models that must be told how large a picture was, of which a tile is one alone here.
_TILED = ("lines",)
_ALONE = {"image_size_to_num_patches": lambda **_: 1}


#: Attribute of a module that has the number of rows for each number of patches.
_ROWS_OF = "patch_to_query_dict"


class _Any:
    """Equal to every number of patches."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Picture(nn.Module):
    """The forward up to the merge, of a picture or a tile of one.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        images: As a recipe says of them.
    """

    def __init__(self, model: Any, images: Images) -> None:
        super().__init__()
        self.model, self.images = model, images
        token = attrgetter(images.token)(model.config)
        around = getattr(model.config, images.around) if images.around else ()
        self.tokens = torch.tensor([[token, token, *around]])

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features, and after them those of the tokens around."""
        (pixels, *finer), noted = given, FeatureRecorder()
        told: dict[str, Any] = {"pixel_values": pixels[None] if self.images.nested else pixels}
        for one in finer:
            told[f"{self.images.fine}_pixel_values"] = one
        if (self.images.sized and not self.images.mask) or self.images.column:
            told["image_sizes"] = [tuple(pixels.shape[2:])]
        elif self.images.layout in _TILED:
            told["image_sizes"] = torch.tensor([pixels.shape[2:]])
        if self.images.mask and not self.images.sized:
            told[self.images.mask] = torch.ones(1, 1, dtype=torch.bool)
        module = sys.modules[type(self.model).__module__]
        alone = {name: one for name, one in _ALONE.items() if hasattr(module, name)}
        with (
            swapped(unread(self.model)),
            mock.patch.dict(vars(module), alone),
            self._of_square(),
            Concrete(),
            noted,
        ):
            if self.images.added:
                every = self.model.get_image_features(**told).deepstack_features
                return tuple(rows_of(rows) for _, rows in every)
            if self.images.deepstack:
                return self._of_layers(told)
            self.model(input_ids=self.tokens, **told)
        rows = rows_of(noted.features)
        return (torch.cat([rows, rows_of(noted.around)]) if noted.around else rows,)

    def _of_square(self) -> Any:
        """Let a forward make as many rows as of the square that a processor pads to, though it is given no padding."""
        if not self.images.filled:
            return nullcontext()
        vision = self.model.config.vision_config
        patches = (vision.image_size // vision.patch_size) ** 2
        module = next(one for one in self.model.modules() if hasattr(one, _ROWS_OF))
        rows = getattr(module, _ROWS_OF)[patches]
        return mock.patch.object(module, _ROWS_OF, {_Any(): rows})

    def _of_layers(self, told: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Return the rows of features, those that are added later, and all of them again, finer."""
        found: list[Any] = []
        changes = []
        if can_be_finer(self.images, self.model.config.vision_config):
            argument = self.images.finer[2]
            part = [one for one in self.model.modules() if _takes(one, argument)][-1]
            plain = part.forward

            def both(*args: Any, **given: Any) -> Any:
                rows, added = plain(*args, **{**given, argument: True})
                found.extend([rows, *added])
                return plain(*args, **given)

            changes.append((part, "forward", both))
        with swapped(*changes):
            output = self.model.get_image_features(**told)
        return tuple(map(rows_of, [output.pooler_output, *output.deepstack_features, *found]))


class Frame(Picture):
    """What a forward makes of a frame of a video by itself, of a model whose pictures go through other operators."""

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features of a frame, (1, channels, height, width)."""
        (pixels,) = given
        with Concrete():
            output = self.model.base_model.get_video_features(pixel_values_videos=pixels[None])
        return (rows_of(output.pooler_output),)


def _takes(module: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(module.forward).parameters


def can_be_finer(images: Images, vision: Any) -> bool:
    """Tell whether a tile may become more rows than usual.

    Args:
        images: As a recipe says of them.
        vision: The model's config of its tower.
    """
    return bool(images.finer) and bool(getattr(vision, images.finer[1]))


class Column(Picture):
    """The forward of a picture whose squares of merged patches lie one below another: where they really are is told.

    Args:
        model: As of `Picture`.
        images: As a recipe says of them.
        merge: Patches on a side of a square.
    """

    def __init__(self, model: Any, images: Images, merge: int) -> None:
        super().__init__(model, images)
        self.merge = merge

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features of patches, (patches, channels, rows, columns), places and ends."""
        patches, places, ends = given
        channels, side = patches.shape[1:3]
        rows = patches.shape[0] // self.merge**2
        squares = patches.reshape(rows, self.merge, self.merge, channels, side, side)
        column = squares.permute(3, 0, 1, 4, 2, 5)
        wide = self.merge * side
        tower = self.model.get_encoder(modality="image")
        turn, run = tower.patch_positional_embedding, tower.transformer
        plain, attend = turn.forward, run.forward

        def packed(embeds: Tensor, **told: Any) -> Any:
            return attend(embeds, **{**told, "cu_seq_lens_q": ends})

        with swapped(
            (turn, "forward", lambda embeds, _: plain(embeds, places)), (run, "forward", packed)
        ):
            return super().forward([column.reshape(1, channels, rows * wide, wide)])


class _Lengths:
    """Of a mask of patches, all that a forward asks for where none of them fills up: how many there are."""

    def __init__(self, count: Any) -> None:
        self.count = count

    def sum(self, dim: int) -> list[Any]:
        return [self.count]


class Shaped(nn.Module):
    """Patches of a picture up to its features, of a forward that is told the height and width of each picture.

    It is told those of one column of squares of merged patches: where they really lie is in the weights of positions.

    Args:
        model: As of `Picture`.
        merge: Patches on a side of a square.
    """

    def __init__(self, model: Any, merge: int) -> None:
        super().__init__()
        self.model, self.merge = model, merge

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features of patches (patches, values), whose places are in the weights alone."""
        patches, ends, shares = given
        count = patches.shape[0]
        tower = self.model.get_encoder(modality="image")
        embed, run = tower.embeddings, tower.encoder
        attend, apart = run.forward, towers.apart(count, ends)

        def place(table: Tensor, *_: Any, **__: Any) -> Tensor:
            return (shares @ table.flatten(0, 1))[None]

        def packed(inputs_embeds: Tensor, attention_mask: Any, **told: Any) -> Any:
            return attend(inputs_embeds, apart, **told)

        see = tower.forward

        def unmasked(**told: Any) -> Any:
            return see(**{**told, "pixel_attention_mask": None})

        changes = (
            (embed, "resize_positional_embeddings", place),
            (run, "forward", packed),
            (tower, "forward", unmasked),
        )
        with Concrete(), swapped(*changes):
            output = self.model.get_image_features(
                pixel_values=patches[None],
                spatial_shapes=[(count // self.merge, self.merge)],
                pixel_attention_mask=_Lengths(count),
            )
        return (rows_of(output.pooler_output),)


def layers_of(media: Media, config: Any) -> list[int]:
    """Return the layers before which features are added, none of which take a token's place."""
    listed = [one for name in media.added for one in getattr(config, name)]
    return [one if isinstance(one, int) else one[1] for one in listed]


def tracing(
    model: Any, *, images: Mapping[str, Any], side: int | None = None, frames: bool = False
) -> Tracing:
    """Describe how to trace the vision tower of `model`.

    Args:
        model: From `loader.load_meta`.
        images: As a recipe says of them.
        side: Pixels on a side of what it reads; None for what the config says.
        frames: Whether that is a frame of a video, where those have a program.
    """
    told = images_of(images)
    if frames and told.video_merge:
        told = replace(told, merge=told.video_merge)
    if told.patches:
        if told.packed:
            return patches.tracing(model, told, partial(Packed, model))
        own = partial(Shaped, model) if told.shapes else partial(Column, model, told)
        return patches.tracing(model, told, own)
    if told.pooled:
        return overlapping_crop_tracing.tracing(model, told)
    if told.towerless:
        return _of_patches(model)
    vision = model.config.vision_config
    size = side or vision.image_size
    axes: dict[int, Any] = {}
    if told.sized:
        unit = vision.patch_size * getattr(model.config, "spatial_merge_size", 1)
        rows, columns = (Dim(name, min=2, max=size // unit) for name in ("rows", "columns"))
        size, axes = (2 * unit, 3 * unit), {2: unit * rows, 3: unit * columns}
    given = {"pixel_values": (_picture(vision, size), axes)}
    if told.fine:
        finer = getattr(model.config, f"{told.fine}_vision_config")
        given[f"{told.fine}_pixel_values"] = _picture(finer, finer.image_size), {}
    added = len(layers_of(told, model.config)[1:])
    if told.deepstack:
        added = len(getattr(vision, told.deepstack))
    names = ["image_embeds", *(f"deepstack.{index}" for index in range(added))]
    if can_be_finer(told, vision):
        names += [f"{FINER}{name}" for name in names]
    return Tracing(
        module=(Frame if frames else Picture)(model, told).eval(),
        inputs={"given": [example for example, _ in given.values()]},
        dynamic_shapes={"given": [axes for _, axes in given.values()]},
        input_names=[*given],
        output_names=names,
        then=_name_sides if told.sized else None,
    )


def _made_of_patches(model: Any, values: Tensor) -> Any:
    return model.model.get_image_features(values).last_hidden_state


def _of_patches(model: Any) -> Tracing:
    """Describe how to trace what makes a row of each patch."""
    config = model.config
    example = torch.zeros(3, config.patch_size**2 * config.num_channels)
    return Tracing(
        module=patches.Rows(model, _made_of_patches).eval(),
        inputs={"given": [example]},
        dynamic_shapes={"given": [{0: Dim("image_rows", min=2)}]},
        input_names=["pixel_values"],
        output_names=["image_embeds"],
    )


def _picture(vision: Any, size: Any) -> Tensor:
    """Return an example for a tower, of that height and width."""
    sides = size if isinstance(size, list | tuple) else (size, size)
    return torch.zeros(1, getattr(vision, "num_channels", 3), *sides)


def _name_sides(graph: Any) -> None:
    """Call the sides of a picture that, which the trace knows as multiples of a patch's, and their product rows."""
    rename(graph.graph.inputs, lambda dim, axis: ("height", "width")[axis - 2] if axis > 1 else dim)
    rename(graph.graph.outputs, lambda dim, axis: dim if axis else "image_rows")
