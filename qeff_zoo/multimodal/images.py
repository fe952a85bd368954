# SPDX-License-Identifier: Apache-2.0
"""Base of the image encoders that recipes declare: values, and hooks that a family of models overrides.

Importing this module, or a family, imports neither numpy nor torch; a hook imports what it needs.
"""

from dataclasses import dataclass

from qeff_zoo.recipe_media import Media


@dataclass(frozen=True, kw_only=True)
class Images(Media):
    """How pictures come into a language model.

    Args:
        patches: Whether the vision tower takes patches of pictures of any size, and is told where they lie; else
            pictures of one size.
        layout: How the tiles of a picture lie in its rows and in the prompt: one of `runtime.layouts`.
        tiled_alone: Whether a picture is cut into tiles only where a prompt has no other, as its processor does.
        nested: Whether the forward takes the tiles of a picture on an axis of their own.
        pixels: What a processor and a forward call the pixels of a picture, where that is not `pixel_values`.
        fine: What begins the names of a second tower's config, and of a picture as that one takes it, where two towers
            read each picture in two sizes.
        sized: Whether the tower takes a picture of any height and width, in whole patches.
        filled: Whether a processor pads images to the square of the tower's config, of which alone the number of rows
            depends, and a patch counts that padding covers in part.
        column: Of a tower of patches, whether its forward takes a picture and no patches: one of the squares that are
            merged, one below another.
        lines: Whether a processor gives patches line by line, and not square by square of those that are merged.
        planes: Whether patches are (channels, rows, columns), and not one list of values.
        taps: How learned positions are interpolated: "bilinear" or "bicubic" around the middles of patches, "nearest",
            where each takes one, or "antialiased", where a patch may take a share of every position; else bilinear with
            corners aligned.
        frames: Whether the tower is told the frame of a patch beside its row and column.
        merged: Whether a processor merges patches itself, so that each that it gives becomes a row.
        merge: Patches on a side of the square that becomes a row, where a forward is told that of each picture; 0 where
            the config says it.
        positions: What a processor calls the column and row of each patch, -1 for padding, where it says those itself.
        shapes: What a processor calls rows and columns of each tile's patches, where it fills up their sequence.
        packed: What a processor calls rows and columns of each tile's patches, where those of all tiles lie side by
            side in one line; squares of them may be merged within the tower, too.
        numbered: Names of the tokenizer's special tokens around the number of each picture of a prompt.
        pooled: What a processor calls the patches of which each row is made, counted over all crops of a picture, -1
            for none, where a row may be of several crops; these are then read together.
        crossing: Field of the text config that lists the layers which read pictures by cross-attention, where those do,
            and features take no token's place; then `mask` is of tiles.
        finer: What a processor says of a picture of which each tile becomes more rows than usual; the field of the
            vision config that says whether a model can make those; and the argument of the part of the tower that does.
        tiles: What a processor and a forward call tiles of a picture, where those have another size than the whole: the
            tower is then two programs, one for each size.
        towerless: Whether a matrix makes a row of each patch, and there is no tower; pictures have any size then.
        video: Field of the config with the token that stands for a row of a video, where the tower reads frames, too;
            or that token itself, where no config has it.
        video_processor: transformers' class for videos, where a checkpoint's own files name none.
        video_program: Whether frames go through other operators than pictures: a program of their own.
        video_merge: Of that program, patches on a side of the square that becomes a row, where it takes patches.
        alone: Whether a video is all that a prompt may have beside text.
        stamp: Texts before and after the rows of each step of a video, which is read as a picture by itself, and
            between steps; those around it are formatted with the step's time in seconds, the same without its fraction
            as `second`, as minutes and seconds as `clock`, and its `number`. Nothing where a video is read as one, or
            where its processor says them. Then texts before and after all of a video, perhaps empty, where what is
            written is read with what stands beside it, so that no token stands for a video; the first is formatted with
            the number of its `frames`, in words, and its `duration`.
        video_template: Chat template of prompts with videos, where its processor has one for those, whatever a
            checkpoint says.
        pace: Rotary positions that a second of a video takes, unless the config says `position_id_per_seconds`, or the
            vision config `tokens_per_second`; 0 where each of its steps takes one.
        lasting: Whether what follows a video comes after its last step, too, and not after its rows and columns alone.
        fractions: Whether steps may lie at fractions of positions, which programs do not have: such a video is refused.
    """

    token: str = "image_token_id"
    patches: bool = False
    layout: str = ""
    tiled_alone: bool = False
    nested: bool = False
    pixels: str = ""
    fine: str = ""
    sized: bool = False
    filled: bool = False
    column: bool = False
    lines: bool = False
    planes: bool = False
    taps: str = ""
    frames: bool = False
    merged: bool = False
    merge: int = 0
    positions: str = ""
    shapes: str = ""
    packed: str = ""
    numbered: tuple[str, ...] = ()
    pooled: str = ""
    crossing: str = ""
    finer: tuple[str, ...] = ()
    tiles: str = ""
    towerless: bool = False
    video: str = ""
    video_processor: str = ""
    video_program: bool = False
    video_merge: int = 0
    alone: bool = False
    stamp: tuple[str, ...] = ()
    video_template: str = ""
    pace: int = 0
    lasting: bool = False
    fractions: bool = False
