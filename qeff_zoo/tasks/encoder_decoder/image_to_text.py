# SPDX-License-Identifier: Apache-2.0
"""The `image-to-text` contract: an image in, and tokens of a generated text out.

Two programs: `encoder` encodes an image once, `decoder` generates from its states. See
`qeff_zoo.export.tracing.encoder_decoder_tracing` for inputs and outputs. Models with images in their decoder prompt are
of `image-text-to-text`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import IMAGE_TO_TEXT, lazy
from qeff_zoo.contract.commands import BENCH_GENERATION, GENERATION, PROMPTS, Commands
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import CAPTION_SHAPES, Recipe, Shape
from qeff_zoo.tasks.images import whole_images
from qeff_zoo.tasks.speech import seq2seq
from qeff_zoo.tasks.text_generation import task

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

_READ_FROM = "what is written of an image is short"


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    tagging = (
        recipe.submodels and checkpoint.config["encoder"]["model_type"] in recipe.submodels.tagging
    )
    delimiters = [checkpoint.text_config[name] for name in recipe.answer_delimiters]
    return {
        **({"continuous_batching": True} if shape.full_batch_size else {}),
        **({"tagging": True} if tagging else {}),
        **({"answer_delimiters": delimiters} if delimiters else {}),
        **({"image_prompt": _image_prompt(checkpoint, recipe)} if recipe.image_prompt else {}),
    }


def _image_prompt(checkpoint: "Checkpoint", recipe: Recipe) -> dict[str, Any]:
    """Return the format of encoder prompts: placeholder token, number of placeholders, and prompts of task tokens."""
    assert recipe.image_prompt
    rows = math.prod(_grid(checkpoint, recipe)) + 1  # and their mean
    placeholder = checkpoint.config[recipe.image_prompt.placeholder]
    return {
        "placeholder": placeholder,
        "rows": rows,
        "questions": dict(recipe.image_prompt.questions),
    }


def _grid(checkpoint: "Checkpoint", recipe: Recipe) -> tuple[int, int]:
    """Return the numbers of feature rows and columns of an image."""
    assert recipe.image_prompt
    height, width = whole_images.image_size(checkpoint.companions, recipe.image_processor)
    for stride in checkpoint.config["vision_config"][recipe.image_prompt.strides]:
        height, width = -(-height // stride), -(-width // stride)
    return height, width


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    problems = task.not_alone(_READ_FROM)(checkpoint, recipe, request)
    if not recipe.image_prompt:
        problems += task.of_one_length(checkpoint, request, "images as sequences")
    strange = [*_strange(checkpoint, recipe)]
    return [*problems, *(strange or _misfits(checkpoint, recipe))]


def _strange(checkpoint: "Checkpoint", recipe: Recipe) -> Iterator[str]:
    """Refuse untested encoders and decoders, and a config that lacks the tokens and fields of prompts."""
    if (prompt := recipe.image_prompt) and (
        prompt.placeholder not in checkpoint.config
        or prompt.strides not in checkpoint.config.get("vision_config", ())
    ):
        yield (
            f"config.json of {checkpoint.name!r} lacks {prompt.placeholder}, or {prompt.strides} in its vision_config; "
            "expected both, for the image tokens before a prompt. Add them."
        )
    for name in (
        ("bos_token_id", "eos_token_id") if recipe.image_prompt else recipe.answer_delimiters
    ):
        if not isinstance(checkpoint.text_config.get(name), int):
            yield (
                f"The text_config of {checkpoint.name!r} has no {name}; expected a token: answers, or prompts, are "
                "between two. Add it to config.json."
            )
    if recipe.submodels is None:
        return
    known = {"encoder": recipe.submodels.encoders, "decoder": recipe.submodels.decoders}
    for half, types in known.items():
        value = (checkpoint.config.get(half) or {}).get("model_type")
        if value not in types:
            yield (
                f"{checkpoint.name!r} has the {half} {value!r}; expected {', '.join(types[:-1])} or {types[-1]}, which "
                f"recipe {recipe.model_type!r} covers. Use a checkpoint that is made of these."
            )
    decoder = checkpoint.config.get("decoder") or {}
    if decoder.get("add_cross_attention") is False:
        yield (
            f"The decoder of {checkpoint.name!r} has no cross-attention (`add_cross_attention` is false), so that it "
            "never sees the image. Expected true; correct config.json, if the weights are there."
        )


def _misfits(checkpoint: "Checkpoint", recipe: Recipe) -> list[str]:
    """Refuse a missing processor, or one whose image size differs from that of the encoder."""
    try:
        size = whole_images.image_size(checkpoint.companions, recipe.image_processor)
    except ZooError as error:
        return [str(error)]
    config = checkpoint.config
    if recipe.image_prompt:
        return []
    value = (config.get("encoder") or config["vision_config"]).get("image_size", whole_images.USUAL)
    taken = (value, value) if isinstance(value, int) else tuple(value)
    if size == taken:
        return []
    return [
        f"The processor of {checkpoint.name!r} makes images of {size[0]} x {size[1]} pixels (height, width), and its "
        f"encoder takes {taken[0]} x {taken[1]}. Expected one size; correct `size` in preprocessor_config.json, or "
        "`image_size` of the encoder in config.json."
    ]


def _tracing(
    model: Any,
    *,
    tagging: bool = False,
    answer_delimiters: Any = (),
    image_prompt: Any = None,
    **variant: Any,
) -> Any:
    return seq2seq.TASK.tracing(model, **variant)


def _read(model: Any, *, height: int = 0, width: int = 0) -> Any:
    from qeff_zoo.export.tracing import encoder_decoder_tracing

    return encoder_decoder_tracing.read_source(model, (height, width) if height else None)


def _size(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the size of images, if the model's config does not set it."""
    return whole_images.variant(checkpoint, recipe, shape, chosen) if recipe.image_prompt else {}


def _writer(model: Any) -> Any:
    from qeff_zoo.export.tracing import encoder_decoder_tracing

    return encoder_decoder_tracing.writer_of(model)


def _reader(model: Any) -> Any:
    from qeff_zoo.export.tracing import encoder_decoder_tracing

    return encoder_decoder_tracing.reader_of(model)


TASK = replace(
    seq2seq.TASK,
    name=IMAGE_TO_TEXT,
    does="caption images and recognize text",
    guide="image-to-text.md",
    reads="image",
    beside=(),
    generation_warnings=lambda generation, recipe: (),
    auto_classes=("AutoModelForImageTextToText",),
    suffixes=("VisionEncoderDecoderModel",),
    before=tuple(
        replace(part, half=_reader, tracing=_read, variant=_size) for part in seq2seq.TASK.before
    ),
    half=_writer,
    shapes=CAPTION_SHAPES,
    tracing=_tracing,
    variant=_variant,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.encoder_decoder.image_to_text_session:ImageToTextSession"),
    public=("qeff_zoo.tasks.encoder_decoder.image_to_text_session:ImageToTextSession",),
    trial=lazy("qeff_zoo.tasks.encoder_decoder.trial:ImageToTextTrial"),
    reference=lazy("qeff_zoo.tasks.encoder_decoder.reference:ImageToTextReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.encoder_decoder.verbs:DescribeImages"),
        run_options=(*PROMPTS, *GENERATION, "image"),
        serve=lazy("qeff_zoo.tasks.text_generation.service:Generation"),
        serve_options=("lora_modules", "allow_adapters", "allow_image_url"),
        bench="generation",
        bench_options=(*BENCH_GENERATION, "image"),
    ),
)
