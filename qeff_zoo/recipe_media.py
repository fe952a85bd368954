# SPDX-License-Identifier: Apache-2.0
"""Declarations: what a recipe can say about pictures, sounds and speech. Values only, as in `qeff_zoo.recipe`."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Media:
    """How pictures or sounds, of which another program makes rows of features, come into a language model.

    Args:
        token: Field of the config with the token of which there is one for each row of features; `part.field` of one of
            its parts.
        axes: Of rotary positions: 1, or 3 for time, height and width.
        types: Argument that tells the forward which tokens are a picture's, where attention depends on that.
        whole: What must be in one call of prefill, since its tokens see one another: "image", "images" for all those of
            a prompt with what lies between them, "prompt", or nothing.
        deepstack: Field of the vision config that lists the layers whose features are added in the language model.
        added: Fields of the config that list layers of the language model before which features are added, in the order
            in which its forward lists those; none of them take a token's place then. Of pairs the second is that layer.
        around: Field of the config that lists the tokens around a picture's rows for which its tower makes rows, too.
        marker: Field of the config with the token that stands for a picture or sound in a prompt, or a text that does,
            which need not be one token; nothing for `token`.
        before: Tokens before those of the rows, of those that the marker becomes: ids, fields of the config, or texts.
        after: Tokens after them.
        begun: Field of the config with the token that a chat template writes before each marker, where a forward finds
            pictures by that.
        spaced: How its marker, `{}`, is written into a prompt's text, which is read with what stands beside it; a space
            at the end only before a word.
        text: How what follows the last picture of a prompt is written, as `<bos>{}`; nothing for as it is.
        ends: Field of the config with the token that ends an answer, whatever generation_config.json says, where
            `generate` is that of a part; nothing for what that file says.
        mask: What a processor calls the part of its result that is no padding, where it fills up.
        among: Fields of the config with the tokens that are written among and around a picture's rows, where they see
            others and are seen as if they had rows, too.
        opening: Names of special tokens, of which the first that a tokenizer has begins every prompt.
        embedded: Whether rows are put among the embeddings of tokens, since a forward cannot be told them as it can be
            those of another kind.
        adapter: Folder of a checkpoint, "." for its own, that has an adapter which is to be on only where a prompt has
            pictures or sounds.
    """

    token: str
    axes: int = 1
    types: str = ""
    whole: str = ""
    deepstack: str = ""
    added: tuple[str, ...] = ()
    around: str = ""
    marker: str = ""
    before: tuple[int | str, ...] = ()
    after: tuple[int | str, ...] = ()
    begun: str = ""
    spaced: str = ""
    text: str = ""
    ends: str = ""
    mask: str = ""
    among: tuple[str, ...] = ()
    opening: tuple[str, ...] = ()
    embedded: bool = False
    adapter: str = ""


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


@dataclass(frozen=True, kw_only=True)
class Sounds(Media):
    """How sounds come into a language model, of which an encoder reads windows of one length.

    Args:
        windows: How many a sound may have at most; 0 for as many as fit into a prompt.
        together: Whether features of a sound are computed of all its windows together, and not of each by itself.
        window: Name of the encoder's frames of a window, where a forward takes a sound of any length at once, whose
            windows do not hear one another; nothing where each is given by itself, with a frame for every position.
        halves: Whether that name has half of them.
        filled: Whether a processor fills up every sound with silence, to as much as it takes at most, and the last of
            its frames hear that.
        times: Name of a method of the model that says when each row of a sound's windows is, (windows, rows) in
            seconds, which it is to find in the prompt; nothing where rows have no times.
        features: What a processor and a forward call features of a sound, where that is not `input_features`.
        span: Rows that its encoder reads at once, where it merges frames of a sound of any length to rows first.
        blocks: Name of the encoder's frames of a block, where it reads a sound of any length at once, and cuts it into
            blocks only for attention.
        chunks: Name of the encoder's rows of a chunk, where it reads a sound of any length at once, and attends within
            chunks of it and what is before.
        samples: Name in the audio config of the samples of a frame, where a matrix makes a row of each frame, and there
            is no encoder.
        rows: Field of the config with the number of rows of every sound, where a forward fills those up with others.
        apart: Whether a sound is read by itself only, since an encoder hears what a processor fills up the shorter of
            several with.
        taken_as: Kind of features as which a forward takes the rows of a sound that was read already, where it takes
            none of sounds.
        written: Whether a message is a text in which the token stands for each sound, and no list of parts.
    """

    token: str = "audio_token_id"
    windows: int = 0
    together: bool = False
    window: str = ""
    halves: bool = False
    filled: bool = False
    times: str = ""
    features: str = ""
    span: int = 0
    blocks: str = ""
    chunks: str = ""
    samples: str = ""
    rows: str = ""
    apart: bool = False
    taken_as: str = ""
    written: bool = False


@dataclass(frozen=True, kw_only=True)
class Speech:
    """How what is written of speech begins, where no file of a checkpoint says it.

    Args:
        languages: Codes of those that may be spoken.
        begins: Its tokens, with `{source}` in place of the code of the language that is spoken, and `{target}` of that
            which is written; nothing where a checkpoint's chat template writes them.
        translates: Whether the one may differ from the other.
    """

    languages: tuple[str, ...]
    begins: tuple[str, ...] = ()
    translates: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What an encoder reads besides a picture: a prompt, behind the places of the picture's tokens.

    Args:
        placeholder: Name in the config of the token that stands in those places.
        strides: Name in `vision_config` of what a picture's sides are divided by, one stage after the other.
        questions: What a prompt says in place of a task's token; `{input}` is what else the prompt has, and where it is
            not, there must be nothing else.
    """

    placeholder: str
    strides: str
    questions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SubModels:
    """The models that a checkpoint may be made of, where each of its halves is of an architecture of its own.

    Args:
        encoders: `model_type` of what reads.
        decoders: `model_type` of what writes.
        after_padding: Those decoders whose learned positions are counted from `pad_token_id + 1`.
        tagging: Those encoders whose checkpoints answer in tags: special tokens are part of an answer, and a prompt is
            how it begins. Beside others, the token that begins every answer comes before a prompt.
    """

    encoders: tuple[str, ...]
    decoders: tuple[str, ...]
    after_padding: tuple[str, ...] = ()
    tagging: tuple[str, ...] = ()
