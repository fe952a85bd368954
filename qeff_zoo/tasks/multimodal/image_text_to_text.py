# SPDX-License-Identifier: Apache-2.0
"""The `image-text-to-text` contract: images and tokens in, the last valid position's logits and the states out.

Two programs: `vision` encodes an image once, `language` takes its feature rows among the tokens, or by cross-attention;
draft programs are beside them. A third, `tiles`, encodes tiles of an image that have another size, or `frames` encodes
frames of a video that go through other operators. See `qeff_zoo.multimodal.tracing.vision_tracing`,
`qeff_zoo.multimodal.tracing.language_tracing`, `qeff_zoo.multimodal.tracing.cross_attention_image_tracing` and
`qeff_zoo.export.tracing.draft_tracing` for inputs and outputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.config import token_of
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.contract import IMAGE_TEXT_TO_TEXT, Part, Task, Tracing, lazy, named
from qeff_zoo.contract.commands import (
    BENCH_GENERATION,
    DECODER_CONVERSATION,
    DISAGGREGATED,
    GENERATION,
    GRAMMAR,
    PREFIX_CACHE,
    PROMPTS,
    SERVED_GENERATION,
    SPECULATION,
    Commands,
)
from qeff_zoo.contract.comparison import LOGITS
from qeff_zoo.errors import CheckpointError, MediaError, UnsupportedModelError
from qeff_zoo.multimodal.manifest import audio_of, entry_of, images_of
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import DECODER_SHAPES, Media, PatchShape, Recipe, Shape
from qeff_zoo.tasks.text_generation import task

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint
    from qeff_zoo.media.image_processor import ImageProcessor

#: Number of patches that a program of any size is specialized for: 1,024 are an image of 448 x 448 pixels.
_PATCHES = 1024
_SIDE = 448
_MERGED = 4  # patches of a row of features
#: Crops of an image that are encoded together: the whole, and four parts.
_CROPS = 5
#: Pixels on a side of an image that is large enough to be cut.
_LARGE = 4096
#: Fields of a config and of its processor: number of feature rows of an image.
_ROWS = ("num_query_tokens",)
#: Name of images in the outputs of processors.
PIXELS = "pixel_values"
#: Boundaries of two segments, one of which is padding.
_SEGMENTS = 3


def _read_image(model: Any, *, images: Mapping[str, Any], sides: Sequence[int] = ()) -> Tracing:
    return images_of(images).trace(model, side=next(iter(sides), None))


def _read_tile(model: Any, *, images: Mapping[str, Any], sides: Sequence[int]) -> Tracing:
    return images_of(images).trace(model, side=sides[1])


def _read_frame(model: Any, *, images: Mapping[str, Any]) -> Tracing:
    traced: Tracing = images_of(images).trace_frame(model)
    return traced


def _video_tower(model: Any) -> Any:
    from qeff_zoo.export.transforms.modules import video_tower

    return video_tower(model)


def _vision_tower(model: Any) -> Any:
    from qeff_zoo.export.transforms.modules import vision_tower

    return vision_tower(model)


def _language_model(model: Any) -> Any:
    from qeff_zoo.export.transforms.modules import language_model

    return language_model(model)


def _tracing(
    model: Any,
    *,
    images: Mapping[str, Any] | None = None,
    audio: Mapping[str, Any] | None = None,
    **variant: Any,
) -> Tracing:
    encoder = None if audio is None else audio_of(audio)
    if images is not None:
        return images_of(images).trace_language(model, encoder, **variant)
    from qeff_zoo.multimodal.tracing import language_tracing

    return language_tracing.tracing(model, audio=encoder, **variant)


def _images(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    assert recipe.images is not None
    return {"images": entry_of(of_checkpoint(checkpoint, recipe.images))}


def _sized(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the side of an image in pixels, and of its tiles, if both have a program or no config sets it."""
    variant = _images(checkpoint, recipe, shape, chosen)
    if recipe.images is None or not (recipe.images.tiles or "timm" in recipe.requires):
        return variant
    from qeff_zoo.media.image_processor import read_image_processor

    processor = read_image_processor(checkpoint.companions, recipe.image_processor or None)
    return {**variant, "sides": sides_of(processor, recipe.images.tiles)}


def sides_of(processor: "ImageProcessor", tiles: str) -> list[int]:
    """Return the sides of an image and of its tiles, in pixels; both are equal if it is not cut.

    Args:
        processor: Image processor of a checkpoint.
        tiles: Name of the tiles in its output.

    Raises:
        CheckpointError: Images are not square, or keep their own shape.
    """
    import numpy as np

    arrays = processor([np.zeros((_LARGE // 2, _LARGE, 3), np.uint8)])
    sides = [arrays[name].shape[-2:] for name in (PIXELS, tiles if tiles in arrays else PIXELS)]
    for height, width in sides:
        if height != width:
            raise CheckpointError(
                f"The image processor makes an image of {width} x {height} pixels of one of {_LARGE} x {_LARGE // 2}; "
                "expected squares, since the program of this model has images of one size. Set size to a square in "
                "preprocessor_config.json, as the model was trained."
            )
    return [width for _, width in sides]


def of_checkpoint(checkpoint: "Checkpoint", media: Media) -> Media:
    """Return an image or audio encoder without its adapter if the checkpoint has none."""
    if media.adapter == adapter_beside(checkpoint, media):
        return media
    values: dict[str, Any] = {"adapter": ""}
    return replace(media, **values)


def adapter_beside(checkpoint: "Checkpoint", media: Media) -> str:
    """Return the folder of a checkpoint's adapter for multimodal prompts; "" if it has none."""
    folder = media.adapter
    return folder if folder and _config_of(folder) in checkpoint.files.names else ""


def _of_config(checkpoint: "Checkpoint", media: Media) -> Iterator[str]:
    """Refuse an encoder-decoder as language model, and a config that lacks the required tokens."""
    config = checkpoint.text_config
    if config.get("is_encoder_decoder"):
        yield (
            f"The language model of {checkpoint.name!r} is {config.get('model_type')!r}, an encoder-decoder; expected "
            "a decoder. Choose a checkpoint with one."
        )
    for name in filter(None, (media.token, media.ends)):
        if token_of(checkpoint.model_config, name) is None:
            yield (
                f"config.json of {checkpoint.name!r} has no {name}; expected the id of a token, by which prompts and "
                "answers are written. Add it."
            )


def _of_processor(checkpoint: "Checkpoint") -> Iterator[str]:
    """Refuse a processor whose number of rows for an image differs from its model's.

    transformers' model raises an error for most such prompts; BLIP-2 reads only the first rows, or no image at all.
    Without a file of the processor, prompts have the model's number.
    """
    file = checkpoint.companions.get("processor_config.json")
    written = read_json(file) if file else {}
    for name in _ROWS:
        rows, computed = written.get(name), checkpoint.model_config.get(name)
        if file and computed is not None and rows != computed:
            yield (
                f"processor_config.json of {checkpoint.name!r} sets {name} to {rows!r}, and config.json to {computed!r}"
                f"; expected the number of rows that an image has, in both. Set it to {computed!r} in "
                "processor_config.json."
            )


def _of_image_processor(checkpoint: "Checkpoint", recipe: Recipe) -> Iterator[str]:
    """Refuse an image processor that a package could not compute; without one, a package takes prepared arrays.

    Some settings show only when an image is processed, so a blank one is.
    """
    from qeff_zoo.media.image_processor import read_image_processor
    from qeff_zoo.media.images import blank

    processor = None
    try:
        processor = read_image_processor(checkpoint.companions, recipe.image_processor or None)
        processor.arrays([blank(_SIDE, _SIDE)])
    except (CheckpointError, UnsupportedModelError) as error:
        # Without settings the package takes arrays, or its session reports what is wrong.
        if processor is not None or isinstance(error, UnsupportedModelError):
            yield (
                f"{error} Or remove its settings from the folder of {checkpoint.name!r}, to build a package that takes "
                "such arrays alone."
            )
    except MediaError:  # such a blank image does not suit this processor
        return


def _config_of(folder: str) -> str:
    return str(PurePosixPath(folder, "adapter_config.json"))


def problems(nouns: str, checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return the problems of a request; an adapter of a checkpoint must be merged.

    Args:
        nouns: Plural of an input, "images" or "recordings".
        checkpoint: Checkpoint of the build.
        recipe: Recipe of the checkpoint.
        request: Request of the user.
    """
    reasons = task.TASK.problems(checkpoint, recipe, request)
    media = recipe.images if nouns == "images" else recipe.audio
    assert media is not None
    reasons += [*_of_config(checkpoint, media), *_of_processor(checkpoint)]
    if nouns == "images":
        reasons += _of_image_processor(checkpoint, recipe)
    if not (adapter_folder := adapter_beside(checkpoint, media)):
        return reasons
    own = str(PurePosixPath(checkpoint.model_id or str(checkpoint.folder), adapter_folder))
    folder = (checkpoint.folder / adapter_folder).resolve()
    every = [one.adapter for one in checkpoint.merged]
    if not any(one.repository == own or one.folder.resolve() == folder for one in every):
        reasons.append(
            f"An adapter lies beside {checkpoint.name!r} ({_config_of(adapter_folder)}), which is on if a prompt has "
            f"{nouns}; expected it to be merged. Give --adapter {own}: the package then answers prompts with {nouns} "
            "alone."
        )
    return reasons


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        **task.TASK.variant(checkpoint, recipe, shape, chosen),
        **_images(checkpoint, recipe, shape, chosen),
    }


def _image_sizes(shape: Shape) -> list[dict[str, Any]]:
    if isinstance(shape, PatchShape):
        return named("Image", [_of_patches(count, shape) for count in shape.patches])
    symbols = {"image_rows": _PATCHES // _MERGED, "windows": _PATCHES // _MERGED}
    sides = {
        "height": _SIDE,
        "width": _SIDE,
        "segments": _SEGMENTS,
        "crops": _CROPS,
        "pool": _MERGED,
    }
    return named("Image", [{"batch_size": 1, "patches": _PATCHES, **symbols, **sides}])


def _of_patches(count: int, shape: PatchShape) -> dict[str, int]:
    """Return sizes that are sufficient for an image of a number of patches, whatever its shape."""
    rows, window = count // shape.merged, shape.window or count
    windows = max(-(-tall // window) * -(-(rows // tall) // window) for tall in range(1, rows + 1))
    # Including the first boundary, and one segment of padding.
    return {"patches": count, "image_rows": rows, "windows": windows + 2, "segments": _SEGMENTS}


def specializations(rows: str, shape: Shape) -> list[dict[str, Any]]:
    """Return the specializations of text generation, with as many feature rows per call as the widest call has tokens.

    A device keeps the rows in one buffer. Images for cross-attention are a state, with rows for a number of images.

    Args:
        rows: Symbol of the number of rows.
        shape: Shape of the package.
    """
    calls = task.TASK.specializations(shape)
    every = [call["symbols"] for call in calls]
    widest = max(int(one["batch_size"]) * int(one["seq_len"]) for one in every)
    for one in every:
        if shape.max_num_images:
            one["max_num_images"] = str(shape.max_num_images)
        else:
            one[rows] = str(widest)
    return calls


TASK = Task(
    name=IMAGE_TEXT_TO_TEXT,
    does="answer about images and videos",
    guide="vision-language.md",
    role="decoder",
    program="language",
    before=(
        Part(
            role="vision",
            probe=None,
            tracing=_read_image,
            half=_vision_tower,
            variant=_sized,
            specializations=_image_sizes,
        ),
        Part(
            role="tiles",
            probe=None,
            tracing=_read_tile,
            half=_vision_tower,
            needed=lambda recipe: bool(recipe.images and recipe.images.tiles),
            variant=_sized,
            specializations=_image_sizes,
        ),
    ),
    beside=(
        *task.TASK.beside,
        Part(
            role="frames",
            probe=None,
            tracing=_read_frame,
            half=_video_tower,
            needed=lambda recipe: bool(recipe.images and recipe.images.has_frame_program),
            optional=True,
            variant=_images,
            specializations=_image_sizes,
        ),
    ),
    comparison=LOGITS,
    auto_classes=("AutoModelForImageTextToText", "AutoModelForMultimodalLM"),
    suffixes=(),
    shapes=DECODER_SHAPES,
    probe=None,  # some layers are followed by features
    tracing=_tracing,
    half=_language_model,
    variant=_variant,
    specializations=partial(specializations, "image_rows"),
    problems=partial(problems, "images"),
    session=lazy("qeff_zoo.tasks.multimodal.image_text_session:ImageTextToTextSession"),
    trial=lazy("qeff_zoo.tasks.multimodal.trial:ImageTrial"),
    reference=lazy("qeff_zoo.tasks.text_generation.reference:DecoderReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.multimodal.verbs:GenerateWithMedia"),
        run_options=(
            *PROMPTS,
            *GENERATION,
            *GRAMMAR,
            *SPECULATION,
            *PREFIX_CACHE,
            "adapter",
            "image",
            "video",
        ),
        chat_options=DECODER_CONVERSATION,
        serve=lazy("qeff_zoo.tasks.text_generation.service:Generation"),
        serve_options=(*SERVED_GENERATION, *DISAGGREGATED, "allow_image_url"),
        bench="generation",
        bench_options=(*BENCH_GENERATION, "image"),
    ),
    stages=task.TASK.stages,
)
